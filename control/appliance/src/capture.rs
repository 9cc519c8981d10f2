//! `pollux capture`: packets that a running node receives, sends or drops, as lines or as a file
//! that Wireshark reads.

use crate::asking::NodeSocket;
use crate::output::{note, print};
use crate::pcapng;
use crate::signals::{self, signals};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use pollux_node::admin::capture::{CaptureRequest, CaptureStatus, CapturedPacket, CapturedPackets};
use pollux_node::admin::request::AdminRequest;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the node is asked for packets.
const READ_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a packet that are kept by default: the longest IP packet.
const SNAP_BYTES_MAX: u32 = 65_535;

#[derive(Args)]
pub struct CaptureArguments {
    /// Which packets, in the syntax of tcpdump: host, net, port, portrange, proto, ip, ip6, tcp,
    /// udp, icmp, icmp6, less, greater, with src, dst, and, or, not and parentheses [default: all]
    filter: Vec<String>,
    /// Only packets of this interface
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Packets in transit that are dropped for this reason of `pollux show drops`, in place of
    /// those received and sent
    #[arg(long = "drop", value_name = "REASON")]
    reason: Option<String>,
    /// End after so many packets [default: at a signal]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Write a pcapng file, or to standard output with -, in place of a line for each packet
    #[arg(long, value_name = "FILE|-")]
    write: Option<PathBuf>,
    /// Keep only the first bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_BYTES_MAX)]
    snap: u32,
    #[command(flatten)]
    node: NodeSocket,
}

/// Captures packets until there are enough or a signal arrives, and prints how many were missed.
pub fn capture(arguments: &CaptureArguments) -> Result<(), Box<dyn Error>> {
    let node = &arguments.node;
    let request = CaptureRequest {
        interface: arguments.interface.clone(),
        reason: arguments.reason.clone(),
        filter: arguments.filter.join(" "),
        snap_bytes: Some(arguments.snap as usize),
    };
    let (wake, is_over) = signals()?;
    let request = AdminRequest::BeginCapture(request);
    let status: CaptureStatus = node.ask(&request)?;
    let mut sink = Sink::open(arguments)?;
    note(&format!("capturing at {}", status.interfaces.join(", ")));
    let mut captured = 0;
    let missed = loop {
        // After a signal, the packets that were captured before it are still read.
        let is_last = is_over.load(Ordering::Relaxed);
        let CapturedPackets { packets, missed, has_more } =
            node.ask(&AdminRequest::ReadCapture(status.capture))?;
        let left = arguments.count.map_or(u64::MAX, |count| count - captured);
        for packet in packets.iter().take(left.try_into().unwrap_or(usize::MAX)) {
            sink.take(packet)?;
            captured += 1;
        }
        sink.flush()?;
        if arguments.count == Some(captured) || is_last && !has_more {
            break missed;
        }
        if !has_more && !is_last {
            signals::wait(&wake, READ_EVERY)?;
        }
    };
    node.ask::<()>(&AdminRequest::EndCapture(status.capture))?;
    sink.end(missed)?;
    note(&format!("{captured} packets captured, {missed} missed"));
    Ok(())
}

enum Sink {
    Lines,
    File { file: Box<dyn Write>, snap: u32, interfaces: Vec<String>, last: u64 },
}

impl Sink {
    fn open(arguments: &CaptureArguments) -> Result<Self, Box<dyn Error>> {
        let Some(path) = &arguments.write else { return Ok(Self::Lines) };
        let mut file: Box<dyn Write> = if path.as_os_str() == "-" {
            Box::new(io::stdout())
        } else {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let file = options.open(path);
            let file = file.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            Box::new(BufWriter::new(file))
        };
        file.write_all(&pcapng::section())?;
        let (interfaces, last) = (Vec::new(), 0);
        Ok(Self::File { file, snap: arguments.snap, interfaces, last })
    }

    fn take(&mut self, packet: &CapturedPacket) -> Result<(), Box<dyn Error>> {
        let kept = bytes_of(&packet.data).ok_or("the node sent no hexadecimal digits")?;
        let Self::File { file, snap, interfaces, last } = self else {
            return Ok(print(&line(packet, &kept))?);
        };
        let number = match interfaces.iter().position(|name| *name == packet.interface) {
            Some(number) => number,
            None => {
                file.write_all(&pcapng::interface(&packet.interface, *snap))?;
                interfaces.push(packet.interface.clone());
                interfaces.len() - 1
            }
        };
        let comment = packet.dropped.as_ref().map(|reason| format!("dropped: {reason}"));
        let (full_len, comment) = (packet.bytes as u32, comment.as_deref());
        *last = packet.nanos;
        let number = number as u32;
        let block = pcapng::packet(number, packet.nanos, full_len, &kept, packet.is_sent, comment);
        Ok(file.write_all(&block)?)
    }

    /// Flushes the file, which other programs may read during the capture.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Lines => Ok(()),
            Self::File { file, .. } => file.flush(),
        }
    }

    /// Ends the file with the number of all missed packets, at one interface: readers sum the
    /// numbers of all interfaces.
    fn end(&mut self, missed: u64) -> io::Result<()> {
        if let Self::File { file, interfaces, last, .. } = self {
            if !interfaces.is_empty() {
                file.write_all(&pcapng::statistics(0, *last, missed))?;
            }
            file.flush()?;
        }
        Ok(())
    }
}

fn bytes_of(hexadecimal: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8);
    hexadecimal.as_bytes().chunks(2).map(byte).collect()
}

/// The line of a packet: the time of day in UTC, the interface, the direction, addresses, protocol
/// and length.
fn line(packet: &CapturedPacket, kept: &[u8]) -> String {
    let CapturedPacket { interface, is_sent, dropped, nanos, bytes, .. } = packet;
    let (seconds, micros) = (nanos / 1_000_000_000, nanos / 1000 % 1_000_000);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let what = match (dropped, is_sent) {
        (Some(reason), _) => format!("dropped ({reason})"),
        (None, true) => "out".into(),
        (None, false) => "in".into(),
    };
    let addresses = addresses(kept).unwrap_or_else(|| "cut short".into());
    let time = format!("{hour:02}:{minute:02}:{second:02}.{micros:06}");
    format!("{time} {interface} {what} {addresses}, {bytes} bytes\n")
}

fn addresses(packet: &[u8]) -> Option<String> {
    let (source, destination, protocol, ports_at): (std::net::IpAddr, std::net::IpAddr, u8, usize) =
        match packet.first()? >> 4 {
            4 => {
                let header = Ipv4Header::parse(packet.first_chunk()?);
                let is_first = header.fragment_offset == 0;
                let at = if is_first { usize::from(packet[0] & 0xf) * 4 } else { usize::MAX };
                (header.source.into(), header.destination.into(), header.protocol.0, at)
            }
            6 => {
                let header = Ipv6Header::parse(packet.first_chunk()?);
                let (source, destination) = (header.source.into(), header.destination.into());
                (source, destination, header.next_header.0, Ipv6Header::LEN)
            }
            _ => return None,
        };
    let name = match protocol {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        58 => "ICMPv6".into(),
        other => format!("protocol {other}"),
    };
    let port = |at: usize| {
        let bytes = packet.get(at..at.checked_add(2)?)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let ports = port(ports_at).zip(ports_at.checked_add(2).and_then(port));
    Some(match ports.filter(|_| [6, 17].contains(&protocol)) {
        Some((from, to)) => format!("{source} port {from} > {destination} port {to}: {name}"),
        None => format!("{source} > {destination}: {name}"),
    })
}
