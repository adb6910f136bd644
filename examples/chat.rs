//! A chat: every participant is one call with items both ways, and as many processes as there are people.
//!
//! ```text
//! cargo run --example chat -- serve --addr 127.0.0.1:7070
//! cargo run --example chat -- join --addr 127.0.0.1:7070 --name Ada
//! cargo run --example chat -- join --addr 127.0.0.1:7070 --name Grace
//! ```
//!
//! Lines from standard input are said; the end of it, Ctrl-D, leaves. A participant who does not read misses what
//! is said meanwhile and is told how much; nobody else waits for that.

use std::{error::Error, io::stdin, thread, time::Duration};

use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use sluicegate::{Client, ItemSender, Server, Status, Streaming};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};

/// What is heard in the room.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Heard {
    Joined {
        name: String,
    },
    Said {
        name: String,
        line: String,
    },
    Left {
        name: String,
    },
    /// So much was said while you did not listen.
    Missed {
        lines: u64,
    },
}

#[sluicegate::service]
trait Chat {
    /// Joins the room as `name`. What is said goes up, what is heard comes down; the end of `said` leaves.
    async fn join(&self, name: String, said: Streaming<String>, heard: ItemSender<Heard>) -> Result<(), Status>;
}

struct Room {
    heard: broadcast::Sender<Heard>,
}

impl Chat for Room {
    async fn join(
        &self,
        name: String,
        mut said: Streaming<String>,
        mut heard: ItemSender<Heard>,
    ) -> Result<(), Status> {
        let mut room = self.heard.subscribe();
        let tell = |what| drop(self.heard.send(what));
        tell(Heard::Joined { name: name.clone() });
        // Also when the call is cancelled: this future is then dropped.
        let _leaving = Leaving { room: self, name: name.clone() };
        loop {
            tokio::select! {
                line = said.message() => match line? {
                    Some(line) => tell(Heard::Said { name: name.clone(), line }),
                    None => return Ok(()),
                },
                what = room.recv() => match what {
                    // It waits for credit if this participant does not read. Others do not notice.
                    Ok(what) => heard.send(what).await?,
                    Err(RecvError::Lagged(lines)) => heard.send(Heard::Missed { lines }).await?,
                    Err(RecvError::Closed) => return Ok(()),
                },
            }
        }
    }
}

struct Leaving<'a> {
    room: &'a Room,
    name: String,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let _ = self.room.heard.send(Heard::Left { name: self.name.clone() });
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match Args::parse().what {
        What::Serve { addr } => serve(&addr).await,
        What::Join { addr, name } => join(addr, name).await,
    }
}

async fn serve(addr: &str) -> Result<(), Box<dyn Error>> {
    let (heard, _) = broadcast::channel(1_000);
    let server = Server::builder()
        .service(ChatServer::new(Room { heard }))
        .max_concurrent_calls(1_000)
        .drain_grace(Duration::from_secs(1))
        .build()?
        .bind(addr)
        .await?;
    println!("the room is open at {}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        handle.shutdown();
    });
    server.serve().await;
    Ok(())
}

async fn join(addr: String, name: String) -> Result<(), Box<dyn Error>> {
    let chat: ChatClient = Client::new(addr).service();
    let (mut say, mut hear) = chat.join(name).open().await?;
    // In a thread that nobody waits for: whoever reads from a terminal wakes up at the next line, and the end of the room
    // would have to wait for that.
    let (typed, mut lines) = mpsc::channel(16);
    thread::spawn(move || {
        stdin()
            .lines()
            .map_while(Result::ok)
            .take_while(|line| typed.blocking_send(line.clone()).is_ok())
            .for_each(drop);
    });
    let saying = tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            if say.send(line).await.is_err() {
                // What is heard ends as well, and says why.
                break;
            }
        }
        say.end();
    });
    while let Some(heard) = hear.message().await? {
        match heard {
            Heard::Joined { name } => println!("* {name} joined"),
            Heard::Said { name, line } => println!("{name}: {line}"),
            Heard::Left { name } => println!("* {name} left"),
            Heard::Missed { lines } => println!("* you missed {lines} lines"),
        }
    }
    saying.abort();
    Ok(())
}

/// A chat room, and its participants.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Open the room.
    Serve {
        /// Where; port 0 is any that is free.
        #[arg(long, default_value = "127.0.0.1:7070")]
        addr: String,
    },
    /// Join it.
    Join {
        /// Where it is.
        #[arg(long, default_value = "127.0.0.1:7070")]
        addr: String,
        /// As whom.
        #[arg(long)]
        name: String,
    },
}
