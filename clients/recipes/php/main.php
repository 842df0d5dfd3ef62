<?php
// Calls the recipe for each line of the input: play.py says how.
require __DIR__ . '/pay.php';

$once = new Once(fn () => new PDO('pgsql:user=' . getenv('PGUSER') . ';dbname=' . getenv('PGDATABASE'), options: [
    PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::PGSQL_ATTR_DISABLE_PREPARES => true]), 'payments/tenant-1');
while (($line = fgets(STDIN)) !== false) {
    [$key, $account, $amount] = explode(' ', trim($line));
    try {
        $answer = pay($once, $key, ['account' => $account, 'amount' => (int) $amount]);
        echo $answer->code, $answer->replayed ? ' replay ' : ' new ', json_encode($answer->payload), "\n";
    } catch (PDOException $error) {
        echo 'error ', $error->getCode(), "\n";
    } catch (RolledBack) {
        echo "error rolled-back\n";
    }
}
