# Does what Rails' own commands do: up, down, schema FILE, structure FILE, load FILE.
require 'active_record'

ENV['RAILS_ENV'] = 'test'
ActiveRecord::Base.configurations = { test: { adapter: 'postgresql', host: ENV['PGHOST'], port: ENV['PGPORT'], username: ENV['PGUSER'], database: ENV['PGDATABASE'] } }
ActiveRecord::Base.establish_connection(:test)
ActiveRecord::Migration.verbose = false
migrations = ActiveRecord::MigrationContext.new('db', ActiveRecord::SchemaMigration)
tasks = ActiveRecord::Tasks::PostgreSQLDatabaseTasks.new(ActiveRecord::Base.connection_db_config)

case ARGV[0]
when 'up' then migrations.up
when 'down' then migrations.down
when 'schema' then File.open(ARGV[1], 'w') { |file| ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, file) }
when 'structure' then tasks.structure_dump(ARGV[1], nil)
when 'load' then tasks.structure_load(ARGV[1], nil)
end
