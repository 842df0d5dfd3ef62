//! Calls the recipe for each line of the input: play.py says how.
mod pay;

use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio_postgres::Config;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let variable = |name| std::env::var(name).unwrap();
    let mut config = Config::new();
    config
        .host(&variable("PGHOST"))
        .port(variable("PGPORT").parse().unwrap())
        .user(&variable("PGUSER"))
        .dbname(&variable("PGDATABASE"));
    let mut connection = pay::Connection::new(config);
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        match pay::pay(&mut connection, words[0], words[1], words[2].parse().unwrap()).await {
            Ok(answer) => {
                let how = if answer.replayed { "replay" } else { "new" };
                println!("{} {} {}", answer.code, how, answer.payload);
            }
            Err(pay::Error::Database(error)) => println!("error {}", error.code().map_or("lost", |state| state.code())),
            Err(pay::Error::RolledBack) => println!("error rolled-back"),
        }
    }
}
