import org.apache.kafka.server.common.MetadataVersion;

/**
 * The versions of the requests between brokers that Kafka 3.9's MetadataVersion chooses, a line for
 * each protocol of the arguments: Fetch, ListOffsets, OffsetForLeaderEpoch, WriteTxnMarkers.
 */
public class RequestVersions {
    public static void main(String[] arguments) {
        for (String name : arguments) {
            MetadataVersion protocol = MetadataVersion.fromVersionString(name);
            System.out.println(
                name
                    + " " + protocol.fetchRequestVersion()
                    + " " + protocol.listOffsetRequestVersion()
                    + " " + protocol.offsetForLeaderEpochRequestVersion()
                    + " " + protocol.writeTxnMarkersRequestVersion());
        }
    }
}
