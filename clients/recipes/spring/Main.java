import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.springframework.core.NestedRuntimeException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Calls the recipe for each line of the input: play.py says how. */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        var config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://%s:%s/%s?prepareThreshold=0".formatted(
                System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE")));
        config.setUsername(System.getenv("PGUSER"));
        config.setMaximumPoolSize(1);
        try (var pool = new HikariDataSource(config)) {
            var jdbc = new JdbcTemplate(pool);
            var transactions = new TransactionTemplate(new DataSourceTransactionManager(pool));
            var once = new Once(jdbc, transactions, "payments/tenant-1");
            var input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                try {
                    var answer = Pay.pay(once, jdbc, words[0], words[1], Integer.parseInt(words[2]));
                    System.out.printf("%d %s %s%n", answer.code(), answer.replayed() ? "replay" : "new", answer.payload());
                } catch (NestedRuntimeException error) {
                    System.out.println("error " + Once.sqlState(error));
                } catch (Once.RolledBack error) {
                    System.out.println("error rolled-back");
                }
            }
        }
    }
}
