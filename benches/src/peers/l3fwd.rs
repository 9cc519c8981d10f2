//! `dpdk-l3fwd`: one core that routes packets between two ports by longest-prefix match.
//!
//! Its ports (`net_pcap`) receive the packets of a file repeatedly, and discard sent packets. For
//! each packet, the program copies it from memory, checks its headers, looks up its destination and
//! writes a new Ethernet header. It supports at most 1,024 routes.

use super::{PeerProgramError, RunConfig, bad_output, find_program, to_failure};
use crate::judgement::Estimate;
use crate::pair::{Process, with_priority};
use pollux_verbs::rng::SeededRng;
use pollux_wire::capture::{FileHeader, ethernet_record};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use rustix::net::{connect, recv, send, socket};
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "dpdk-l3fwd";
/// Routes to /16 networks. Half of them lead to each port.
pub const ROUTES: usize = 1000;
/// Packets of each port, to random destinations.
const PACKETS: usize = 2048;
/// Measured intervals, after a warm-up interval.
const INTERVALS: usize = 3;
const START_MAX: Duration = Duration::from_secs(20);
const START_PAUSE: Duration = Duration::from_millis(100);

/// The folder with the input files of a run. It is removed on drop.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Forwarded packets per second.
pub fn forward(config: &RunConfig) -> Result<f64, PeerProgramError> {
    find_program(PROGRAM, "--peers")?;
    let prefix = format!("pollux-perf-l3-{}", std::process::id());
    let files = Files(std::env::temp_dir().join(&prefix));
    write_files(&files.0).map_err(to_failure(PROGRAM))?;
    let _router = Process(command(config, &files.0, &prefix).spawn().map_err(to_failure(PROGRAM))?);
    let telemetry = telemetry(Path::new("/var/run/dpdk").join(prefix).join("dpdk_telemetry.v2"))?;
    let mut rates = Vec::new();
    for _ in 0..=INTERVALS {
        rates.push(rate(&telemetry, config.duration)?);
    }
    let estimate = Estimate::of(rates.split_off(1));
    estimate.map(|one| one.median).ok_or_else(|| bad_output(PROGRAM, "no rate"))
}

fn command(config: &RunConfig, files: &Path, prefix: &str) -> Command {
    let mut command = with_priority(config.fifo, PROGRAM);
    command.current_dir(files);
    command.args(["-l", &config.cores[1].to_string(), "--no-huge", "-m", "700", "--no-pci"]);
    command.args(["--file-prefix", prefix]);
    for port in ["net_pcap0", "net_pcap1"] {
        command.args(["--vdev", &format!("{port},rx_pcap={port}.pcap,infinite_rx=1")]);
    }
    // DPDK numbers its cores as the system does.
    let core = config.cores[1];
    command.args(["--", "-p", "3", "-P", &format!("--config=(0,0,{core}),(1,0,{core})")]);
    command.args(["--lookup=lpm", "--rule_ipv4=v4", "--rule_ipv6=v6", "--parse-ptype"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn network(route: usize) -> u32 {
    (20 + route as u32 / 256) << 24 | (route as u32 % 256) << 16
}

fn write_files(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut routes = String::new();
    for route in 0..ROUTES {
        let _ = writeln!(routes, "R{}/16 {}", Ipv4Addr::from(network(route)), route % 2);
    }
    fs::write(folder.join("v4"), routes)?;
    // l3fwd does not start without IPv6 routes.
    fs::write(folder.join("v6"), "R2001:0db8:0:0:0:0:0:0/48 0\n")?;
    let mut rng = SeededRng::new(1);
    for port in ["net_pcap0.pcap", "net_pcap1.pcap"] {
        let mut file = FileHeader::ETHERNET.emit().to_vec();
        for _ in 0..PACKETS {
            let host = 1 + rng.below(65_534) as u32;
            let to = Ipv4Addr::from(network(rng.below(ROUTES as u64) as usize) | host);
            let frame = frame(to);
            file.extend(ethernet_record(Duration::ZERO, frame.len() as u16).emit());
            file.extend(frame);
        }
        fs::write(folder.join(port), file)?;
    }
    Ok(())
}

/// A frame of 64 bytes without its frame check sequence, which capture files omit.
fn frame(destination: Ipv4Addr) -> [u8; 60] {
    let mut frame = [0; 60];
    let (ethernet, packet) = frame.split_at_mut(14);
    ethernet.copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let source = Ipv4Addr::new(198, 18, 0, 1);
    let (protocol, ttl) = (IpProtocol::UDP, 64);
    let header = Ipv4Header { protocol, ttl, source, destination, ..Ipv4Header::default() };
    header.write_packet(&[], packet.len() - Ipv4Header::LEN, packet).expect("the packet fits");
    frame
}

/// Connects to the telemetry socket of the program, as soon as it has started.
#[expect(clippy::disallowed_methods, reason = "it does not say when it has started")]
fn telemetry(path: PathBuf) -> Result<OwnedFd, PeerProgramError> {
    let address = SocketAddrUnix::new(&path).map_err(to_failure(PROGRAM))?;
    let begun = Instant::now();
    loop {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)
            .map_err(to_failure(PROGRAM))?;
        match connect(&socket, &address) {
            Ok(()) => {
                // The server first sends its version.
                recv(&socket, &mut [0; 4096], RecvFlags::empty()).map_err(to_failure(PROGRAM))?;
                return Ok(socket);
            }
            Err(error) if begun.elapsed() >= START_MAX => return Err(to_failure(PROGRAM)(error)),
            Err(_) => std::thread::sleep(START_PAUSE),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
fn rate(telemetry: &OwnedFd, duration: Duration) -> Result<f64, PeerProgramError> {
    let (begun, before) = (Instant::now(), sent(telemetry)?);
    std::thread::sleep(duration);
    Ok((sent(telemetry)? - before) as f64 / begun.elapsed().as_secs_f64())
}

fn sent(telemetry: &OwnedFd) -> Result<u64, PeerProgramError> {
    let mut sum = 0;
    for port in 0..2 {
        let question = format!("/ethdev/stats,{port}");
        send(telemetry, question.as_bytes(), SendFlags::empty()).map_err(to_failure(PROGRAM))?;
        let mut answer = vec![0; 1 << 16];
        let (len, _) =
            recv(telemetry, &mut answer[..], RecvFlags::empty()).map_err(to_failure(PROGRAM))?;
        let answer: serde_json::Value =
            serde_json::from_slice(&answer[..len]).map_err(to_failure(PROGRAM))?;
        let packets = answer["/ethdev/stats"]["opackets"].as_u64();
        sum += packets.ok_or_else(|| bad_output(PROGRAM, &answer.to_string()))?;
    }
    Ok(sum)
}
