//! A program that embeds paced, as a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use paced::Shaper;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;

use crate::loops::http::Sender;

/// How the bench starts itself for such a program.
#[derive(Debug, Parser)]
pub struct Options {
    #[arg(long)]
    config: PathBuf,
    #[arg(long)]
    downstream: String,
    #[arg(long)]
    url: String,
    /// What it calls itself at the API
    #[arg(long)]
    name: String,
    #[arg(long)]
    calls: usize,
}

/// Makes its calls once it gets the signal, and waits to be killed.
pub fn main(options: &Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(options)),
        Err(error) => Err(error.to_string()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("embedding: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), String> {
    let shaper =
        Shaper::from_config(&options.config, &options.downstream).map_err(|error| error.to_string())?;
    let sender = Sender::new(&options.url)?.named(&options.name)?;
    // Connects.
    shaper.peek("").await.map_err(|error| error.to_string())?;
    println!("ready");
    let mut input = tokio::io::stdin();
    input.read_u8().await.map_err(|error| error.to_string())?;
    let mut calls = JoinSet::new();
    for call in 0..options.calls {
        let (shaper, sender) = (shaper.clone(), sender.clone());
        let id = format!("call-{}-{call}", options.name);
        calls.spawn(async move {
            shaper.acquire("").await.map_err(|error| error.to_string())?;
            if sender.send(&id, Vec::new()).await { Ok(()) } else { Err(format!("{id} failed")) }
        });
    }
    while let Some(called) = calls.join_next().await {
        called.map_err(|error| error.to_string())??;
    }
    // The bench ends it.
    let _ = input.read_u8().await;
    Ok(())
}
