// The same under JUnit 5: `replog cluster` runs while the tests of the class do.
//
//     javac -d classes -cp 'kafka-clients.jar:junit-platform-console-standalone.jar:...' Orders*Test.java
//     java -jar junit-platform-console-standalone.jar execute --class-path classes:kafka-clients.jar:... --select-class OrdersJUnit5Test

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class OrdersJUnit5Test {
    static OrdersTest.ReplogCluster kafka;

    @BeforeAll
    static void open() throws Exception {
        kafka = new OrdersTest.ReplogCluster(3);
    }

    @AfterAll
    static void close() throws Exception {
        kafka.close();
    }

    @Test
    void nothingIsWrittenTwice() throws Exception {
        OrdersTest.nothingIsWrittenTwice(kafka);
    }
}
