// A test in Java beside `replog cluster`: no library but kafka-clients. `ReplogCluster` is what a JUnit 5 test
// needs, too: OrdersJUnit5Test.java.
//
//     java -cp 'kafka-clients.jar:...' OrdersTest.java
//
// With arguments, the URL and the bootstrap servers of a cluster that is there, it starts none.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class OrdersTest {
    static class ReplogCluster implements AutoCloseable {
        final String url;
        final String bootstrap;
        private final Process process;
        private final HttpClient http = HttpClient.newHttpClient();

        ReplogCluster(String url, String bootstrap) {
            this.url = url;
            this.bootstrap = bootstrap;
            this.process = null;
        }

        ReplogCluster(int brokers) throws Exception {
            process = new ProcessBuilder("replog", "cluster", "--brokers", "" + brokers)
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            String where = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
            url = field(where, "url");
            bootstrap = field(where, "bootstrap");
        }

        private static String field(String json, String name) {
            Matcher found = Pattern.compile("\"" + name + "\": \"([^\"]*)\"").matcher(json);
            if (!found.find()) {
                throw new IllegalStateException(json);
            }
            return found.group(1);
        }

        /** What a verb answers, as JSON; docs/openapi.json has them all. */
        String verb(String name, String body) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/v1/" + name))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(body)).build();
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) {
                throw new AssertionError(answer.body());
            }
            return answer.body();
        }

        @Override
        public void close() throws Exception {
            if (process != null) {
                process.getOutputStream().close(); // it ends with its input
                process.waitFor();
            }
        }
    }

    static void nothingIsWrittenTwice(ReplogCluster kafka) throws Exception {
        kafka.verb("make_topic", "{\"topic\": \"java-orders\", \"partitions\": 1}");
        String fault = kafka.verb("lose_answer", "{\"api\": \"Produce\", \"topic\": \"java-orders\", \"times\": 1}");
        Map<String, Object> config = Map.of("bootstrap.servers", kafka.bootstrap, "enable.idempotence", true);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("java-orders", "one book")).get();
        }
        kafka.verb("wait_for_hits", "{\"fault\": " + fault + "}");
        String found = kafka.verb("records", "{\"topic\": \"java-orders\", \"at_least\": 1}");
        if (found.split("one book", -1).length != 2) {
            throw new AssertionError(found);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (ReplogCluster kafka = arguments.length == 2
                ? new ReplogCluster(arguments[0], arguments[1]) : new ReplogCluster(3)) {
            nothingIsWrittenTwice(kafka);
        }
        System.out.println("passed");
    }
}
