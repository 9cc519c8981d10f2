//! One end of a connection on a device of the machine, controlled by lines on a serial port.

use pollux_conformance::end::RemoteEnd;
use pollux_conformance::end::line::{Command, Reply};
use pollux_ibverbs::open;
use pollux_verbs::Device;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::time::{Duration, Instant};

/// The interval of polls: an emulated processor that only polls slows the machine.
const PAUSE: Duration = Duration::from_micros(100);

type OwnEnd = RemoteEnd<Box<dyn Device + Send>>;

/// Executes the lines of `port` until there are no more; returns whether all were valid.
pub fn run(device: &str, port: &str) -> bool {
    let outcome = serve(device, port);
    if let Err(error) = &outcome {
        eprintln!("{device} at {port}: {error}");
    }
    outcome.is_ok()
}

/// The first line that is written announces that all is ready.
fn serve(device: &str, port: &str) -> io::Result<()> {
    let opened = open(device).map_err(io::Error::other)?;
    let mut end = RemoteEnd::new(opened.device).map_err(io::Error::other)?;
    let lines = BufReader::new(File::open(port)?).lines();
    let mut out = File::options().write(true).open(port)?;
    let started = Instant::now();
    out.write_all(b"ready\n")?;
    for line in lines {
        let reply = match Command::parse(&line?) {
            Some(command) => carry_out(&mut end, started, command),
            None => Err("no such command".into()),
        };
        let text = reply.map_or_else(|error| format!("failed {error}"), |reply| reply.line());
        out.write_all(format!("{text}\n").as_bytes())?;
    }
    Ok(())
}

fn carry_out(end: &mut OwnEnd, started: Instant, command: Command) -> Result<Reply, String> {
    end.begin(started.elapsed(), command);
    loop {
        if let Some(reply) = end.step(started.elapsed()) {
            return reply;
        }
        std::thread::sleep(PAUSE);
    }
}
