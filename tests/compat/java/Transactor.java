import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer that does one step per line of its input, and answers each with
 * "ok" or with the name and message of the exception. Arguments: bootstrap, transactional id.
 */
public class Transactor {
    private static KafkaProducer<String, String> producer;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", arguments[1],
            "transaction.timeout.ms", 120_000,
            "max.block.ms", 60_000,
            "delivery.timeout.ms", 60_000);
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer = "ok";
            try {
                act(line.split(" "));
            } catch (Exception error) {
                answer = error.toString().replace('\n', ' ');
            }
            System.out.println("= " + answer);
        }
    }

    @SuppressWarnings("removal")
    private static void act(String[] words) throws Exception {
        switch (words[0]) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(
                new ProducerRecord<>(words[1], Integer.parseInt(words[2]), null, words[3])).get();
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[2], 0),
                       new OffsetAndMetadata(Long.parseLong(words[3]))),
                new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
