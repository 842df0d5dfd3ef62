# Calls the recipe for each line of the input: play.py says how.
require_relative 'pay'

$stdout.sync = true
ActiveRecord::Base.establish_connection(
  adapter: 'postgresql', host: ENV['PGHOST'], port: ENV['PGPORT'], username: ENV['PGUSER'], database: ENV['PGDATABASE'], prepared_statements: false)
while (line = $stdin.gets)
  key, account, amount = line.split
  begin
    answer = pay('payments/tenant-1', key, { 'account' => account, 'amount' => amount.to_i })
    puts "#{answer.code} #{answer.replayed ? 'replay' : 'new'} #{answer.payload.to_json}"
  rescue ActiveRecord::StatementInvalid => error
    puts "error #{error.cause.result&.error_field(PG::PG_DIAG_SQLSTATE)}"
  rescue Once::RolledBack
    puts 'error rolled-back'
  end
end
