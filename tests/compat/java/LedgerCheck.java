import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.util.zip.CRC32C;

/**
 * DLedger's own store over a replica's directory: it loads, recovers and reads every entry.
 *
 * <p>Arguments: directory of the node, its name in it ("n1" of "dledger-n1"), size of a data file,
 * size of an index file. Prints "entry INDEX TERM SIZE CRC-32C-OF-BODY" for each and "done" last.
 */
public final class LedgerCheck {
    public static void main(String[] arguments) {
        DLedgerConfig config = new DLedgerConfig();
        config.setStoreBaseDir(arguments[0]);
        config.setSelfId(arguments[1]);
        config.setGroup("default");
        config.setPeers(arguments[1] + "-127.0.0.1:1");
        config.setMappedFileSizeForEntryData(Integer.parseInt(arguments[2]));
        config.setMappedFileSizeForEntryIndex(Integer.parseInt(arguments[3]));
        config.setEnableDiskForceClean(false);
        DLedgerMmapFileStore store = new DLedgerMmapFileStore(config, new MemberState(config));
        store.load();
        store.recover();
        for (long index = store.getLedgerBeginIndex();
                index <= store.getLedgerEndIndex();
                index++) {
            DLedgerEntry entry = store.get(index);
            CRC32C crc = new CRC32C();
            crc.update(entry.getBody());
            System.out.println(
                    "entry "
                            + entry.getIndex()
                            + " "
                            + entry.getTerm()
                            + " "
                            + entry.getBody().length
                            + " "
                            + crc.getValue());
        }
        System.out.println("done");
        System.out.flush();
        System.exit(0);
    }
}
