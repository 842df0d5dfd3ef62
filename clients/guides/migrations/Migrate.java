import java.io.FileReader;
import java.util.Properties;
import org.flywaydb.core.Flyway;

/** Does what Flyway's own program does: {@code Migrate URL migrate|clean}, as flyway.conf says. */
class Migrate {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader("flyway.conf")) {
            settings.load(file);
        }
        Flyway flyway = Flyway.configure().configuration(settings).dataSource(arguments[0], "postgres", null).cleanDisabled(false).load();
        if (arguments[1].equals("clean")) {
            flyway.clean();
        } else {
            System.out.println("applied: " + flyway.migrate().migrationsExecuted);
        }
    }
}
