import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Four producers that begin a transaction as soon as the last one is committed. Two write three
 * records a transaction to "words", two copy what "lines" has to "copies", with their offsets.
 * Arguments: bootstrap, seconds. At the end it prints what was committed, and each failure with
 * how often it came.
 */
public class WithoutPause {
    private static final Map<String, Integer> failures = new TreeMap<>();
    private static final Map<String, Integer> committed = new TreeMap<>();

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            int mine = number;
            Thread thread = new Thread(() -> run(arguments[0], mine, end));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        committed.forEach((what, count) -> System.out.println("committed " + count + " " + what));
        failures.forEach((what, count) -> System.out.println("failed " + count + " " + what));
        System.out.println("done");
    }

    private static synchronized void count(Map<String, Integer> where, String what, int more) {
        where.merge(what, more, Integer::sum);
    }

    private static void run(String bootstrap, int number, long end) {
        KafkaProducer<String, String> producer = null;
        KafkaConsumer<String, String> consumer = number < 2 ? null : consumer(bootstrap, number);
        for (int turn = 0; System.nanoTime() < end; turn++) {
            try {
                if (producer == null) {
                    producer = producer(bootstrap, number);
                    producer.initTransactions();
                }
                producer.beginTransaction();
                int records = consumer == null
                    ? write(producer, number + "-" + turn + "-")
                    : copy(producer, consumer, number);
                producer.commitTransaction();
                count(committed, consumer == null ? "transactions of words" : "copies", 1);
                count(committed, consumer == null ? "words" : "copied", records);
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                count(failures, cause.toString().replace('\n', ' '), 1);
                try {
                    producer.abortTransaction();
                } catch (Exception fatal) {
                    count(failures, "abort: " + fatal.toString().replace('\n', ' '), 1);
                    producer.close(Duration.ZERO);
                    producer = null;
                }
                if (consumer != null) {
                    consumer.close();
                    consumer = consumer(bootstrap, number);
                }
            }
        }
        if (producer != null) {
            producer.close();
        }
        if (consumer != null) {
            consumer.close();
        }
    }

    private static int write(KafkaProducer<String, String> producer, String prefix) {
        for (int part = 0; part < 3; part++) {
            producer.send(new ProducerRecord<>("words", part, null, prefix + part));
        }
        return 3;
    }

    private static int copy(
        KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, int number)
        throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        int records = 0;
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            producer.send(new ProducerRecord<>("copies", record.partition(), null, record.value()));
            offsets.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
            records++;
        }
        if (records > 0) {
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        }
        return records;
    }

    private static KafkaProducer<String, String> producer(String bootstrap, int number) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", "without-pause-" + number,
            "max.block.ms", 60_000,
            "delivery.timeout.ms", 60_000,
            "request.timeout.ms", 30_000);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** It reads one partition of "lines": the first or the second one. */
    private static KafkaConsumer<String, String> consumer(String bootstrap, int number) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", "copier-" + number,
            "enable.auto.commit", false,
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed",
            "max.poll.records", 3);
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.assign(List.of(new TopicPartition("lines", number - 2)));
        return consumer;
    }
}
