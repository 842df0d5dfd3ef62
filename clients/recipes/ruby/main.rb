# Calls the recipe for each line of the input: play.py says how.
require_relative 'pay'

$stdout.sync = true
once = Once.new('payments/tenant-1') { PG.connect(user: ENV['PGUSER'], dbname: ENV['PGDATABASE']) }
while (line = $stdin.gets)
  key, account, amount = line.split
  begin
    answer = pay(once, key, { 'account' => account, 'amount' => amount.to_i })
    puts "#{answer.code} #{answer.replayed ? 'replay' : 'new'} #{answer.payload.to_json}"
  rescue PG::Error => error
    puts "error #{error.result&.error_field(PG::PG_DIAG_SQLSTATE)}"
  rescue Once::RolledBack
    puts 'error rolled-back'
  end
end
