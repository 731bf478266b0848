import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.Random;

import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints the partitions that the Java client chooses for 1000 keys: one line a key, with the
 * key in hex, its murmur2 hash, and its partition among 3, 12, 100 and 2147483647.
 *
 * To make murmur2.tsv anew, with a folder of Kafka's jars (kafka-clients and slf4j-api will do):
 *
 *     java -cp "JARS/*" Murmur2Vectors.java > murmur2.tsv
 */
public class Murmur2Vectors {
    public static void main(String[] args) {
        LinkedHashSet<String> keys = new LinkedHashSet<>();
        HexFormat hex = HexFormat.of();
        for (String s : new String[] {"", "a", "ab", "abc", "abcd", "abcde", "0", "order-1", "Zürich", "ключ", "鍵", "🔑", "\0", " ", "null"}) {
            keys.add(hex.formatHex(s.getBytes(StandardCharsets.UTF_8)));
        }
        Random random = new Random(76);
        for (int n = 0; keys.size() < 1000; n++) {
            byte[] key;
            switch (n % 4) {
                case 0 -> key = ("customer-" + random.nextInt(1_000_000)).getBytes(StandardCharsets.UTF_8);
                case 1 -> key = new java.util.UUID(random.nextLong(), random.nextLong()).toString().getBytes(StandardCharsets.UTF_8);
                case 2 -> { key = new byte[random.nextInt(40)]; random.nextBytes(key); }
                default -> { key = new byte[n % 20 == 3 ? 256 + random.nextInt(300) : random.nextInt(256)]; random.nextBytes(key); }
            }
            keys.add(hex.formatHex(key));
        }
        for (String k : keys) {
            byte[] key = hex.parseHex(k);
            StringBuilder line = new StringBuilder(k).append('\t').append(Utils.murmur2(key));
            for (int n : new int[] {3, 12, 100, Integer.MAX_VALUE}) {
                line.append('\t').append(BuiltInPartitioner.partitionForKey(key, n));
            }
            System.out.println(line);
        }
    }
}
