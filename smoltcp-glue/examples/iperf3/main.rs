//! A client and a server of the iperf3 protocol over Pollux sockets; the peer may be iperf3 itself.
//!
//! ```sh
//! cargo run --release -p pollux --example iperf3 -- -t 2
//! ```
//!
//! This command runs both ends in one process. With a device and an address, the program is the
//! server; with the address of a server in addition, it is the client:
//!
//! ```sh
//! cargo run --release -p pollux --example iperf3 -- mlx5_0:1 10.0.0.1/24
//! cargo run --release -p pollux --example iperf3 -- mlx5_0:1 10.0.0.2/24 10.0.0.1 -u -b 1G -R
//! ```
//!
//! Options are those of iperf3. The numbers of `-n`, `-l` and `-b` may end with K, M or G:
//!
//! | option | meaning |
//! |---|---|
//! | `-u` | datagrams instead of a stream |
//! | `-R` | the server sends |
//! | `-n BYTES`, `-t SECONDS` | the end of the test; the default is 10 s |
//! | `-l BYTES` | length of a datagram, or of a write |
//! | `-b BITS` | maximum rate, per second |
//! | `-m rc`, `uc`, `ud`, `auto` | the mode of the interface (not of iperf3); the default is `rc` |
//!
//! There is one stream, in one direction. Read [`wire`] first, then [`client`], [`server`] and
//! [`stream`].

mod client;
mod control;
#[path = "../ends/mod.rs"]
mod ends;
mod report;
mod server;
mod stream;
mod wire;

use client::Client;
use ends::Ended;
use pollux::{Interface, Mode, Node, UpError};
use server::Server;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use wire::{Amount, PORT, Protocol, Test};

fn main() -> Ended {
    let (test, mode, words) = read(ends::words().into_iter())?;
    let serve = move |device: &str, address: &str| {
        let server = Server::bind(&up(device, address, mode)?, ends::at(address, PORT)?)?;
        loop {
            match server.serve() {
                Ok(report) => println!("the server:\n{report}"),
                Err(error) => eprintln!("{error}"),
            }
        }
    };
    let ask = |device: &str, address: &str, server: &str| {
        let interface = up(device, address, mode)?;
        let control = ends::connect(&interface, SocketAddr::new(server.parse()?, PORT))?;
        let mut client = Client::start(&interface, control, test)?;
        client.transfer()?;
        println!("the client:\n{}", client.finish()?);
        Ok(())
    };
    ends::run(serve, ask, &words)
}

fn up(device: &str, address: &str, mode: Mode) -> Result<Interface, UpError> {
    Node::open(device)?.interface("ib0").address(address).mode(mode).up()
}

/// Parses the command line: the test, the mode, and the words that are not options.
fn read<'a>(
    mut words: impl Iterator<Item = &'a str> + Clone,
) -> Result<(Test, Mode, Vec<&'a str>), Box<dyn Error>> {
    let is_udp = words.clone().any(|word| word == "-u");
    let mut test = Test::of(if is_udp { Protocol::Udp } else { Protocol::Tcp });
    let (mut mode, mut others) = (Mode::Rc, Vec::new());
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word {
            "-u" => {}
            "-R" => test.is_reverse = true,
            "-n" => test.amount = Amount::Bytes(number(value()?, 1024)?),
            "-t" => test.amount = Amount::Time(Duration::from_secs(value()?.parse()?)),
            "-l" => test.block = number(value()?, 1024)? as usize,
            "-b" => test.rate = Some(number(value()?, 1000)?).filter(|rate| *rate > 0),
            "-m" => {
                mode = match value()? {
                    "rc" => Mode::Rc,
                    "uc" => Mode::Uc,
                    "ud" => Mode::Ud,
                    "auto" => Mode::Auto,
                    other => return Err(format!("{other} is no mode").into()),
                }
            }
            _ if word.starts_with('-') => return Err(format!("there is no option {word}").into()),
            _ => others.push(word),
        }
    }
    // The peer would refuse parameters that this program refuses.
    match Test::of_json(&test.to_json()) {
        Some(_) => Ok((test, mode, others)),
        None => Err(format!("{} bytes are no length of a block", test.block).into()),
    }
}

fn number(text: &str, kilo: u64) -> Result<u64, Box<dyn Error>> {
    let (digits, power) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 1),
        Some(digits) if text.ends_with('M') => (digits, 2),
        Some(digits) => (digits, 3),
        None => (text, 0),
    };
    let number: u64 = digits.parse()?;
    number.checked_mul(kilo.pow(power)).ok_or_else(|| format!("{text} is too much").into())
}
