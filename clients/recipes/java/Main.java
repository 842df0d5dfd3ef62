import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.SQLException;

/** Calls the recipe for each line of the input: play.py says how. */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        var config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://%s:%s/%s?prepareThreshold=0".formatted(
                System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE")));
        config.setUsername(System.getenv("PGUSER"));
        config.setMaximumPoolSize(1);
        try (var pool = new HikariDataSource(config)) {
            var once = new Once(pool, "payments/tenant-1");
            var input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                try {
                    var answer = Pay.pay(once, words[0], words[1], Integer.parseInt(words[2]));
                    System.out.printf("%d %s %s%n", answer.code(), answer.replayed() ? "replay" : "new", answer.payload());
                } catch (SQLException error) {
                    System.out.println("error " + error.getSQLState());
                }
            }
        }
    }
}
