import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends each line of its input as a record, one after the other, and prints "ok" or the name of the
 * exception. Arguments: the topic, and name=value of the producer's settings.
 */
public class FaultedProducer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        for (int at = 1; at < arguments.length; at++) {
            String[] parts = arguments[at].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String outcome = "ok";
                try {
                    producer.send(new ProducerRecord<>(arguments[0], 0, null, line)).get();
                } catch (ExecutionException error) {
                    outcome = error.getCause().getClass().getSimpleName();
                } catch (RuntimeException error) {
                    outcome = error.getClass().getSimpleName();
                }
                System.out.println(outcome);
            }
        }
    }
}
