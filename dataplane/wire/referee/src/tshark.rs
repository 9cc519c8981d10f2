//! Dissects packets with tshark.
//!
//! tshark does not check the CRCs of InfiniBand, but it checks the checksums of the IP family and
//! reports malformed packets. One run checks all frames of a test, because the program takes a
//! second to start.

use crate::program;
use pollux_wire::capture::{self, FileHeader};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A packet, and the fields that tshark must find in it.
pub struct DissectedFrame {
    name: String,
    bytes: Vec<u8>,
    expected: Vec<(&'static str, String)>,
    misread: Option<&'static str>,
}

impl DissectedFrame {
    /// A packet, LRH to VCRC; failure messages call it `name`.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes, expected: Vec::new(), misread: None }
    }

    /// Expects that tshark prints `field` as `value`; several values are separated by commas. If
    /// `value` is empty, the field must be absent.
    #[must_use]
    pub fn expect(mut self, field: &'static str, value: impl ToString) -> Self {
        self.expected.push((field, value.to_string()));
        self
    }

    /// Accepts that tshark reports this packet as malformed, because tshark mistakes it for another
    /// protocol. `reason` describes tshark's fault, and is printed.
    #[must_use]
    pub fn misread(mut self, reason: &'static str) -> Self {
        self.misread = Some(reason);
        self
    }

    /// As [`expect`](Self::expect), for a field that tshark prints in hexadecimal with this many
    /// digits.
    #[must_use]
    pub fn expect_hex(self, field: &'static str, value: impl Into<u64>, digits: usize) -> Self {
        self.expect(field, format!("{:#0width$x}", value.into(), width = digits + 2))
    }
}

/// Dissectors that guess the protocol from the payload and mistake test payloads for theirs.
const GUESSERS: &str = "rpcordma,smc,iser,nvme-rdma,infiniband.eoib";

/// Dissects all frames and compares the result with the expected fields. If tshark is not
/// installed, prints that `test` is skipped.
///
/// # Panics
/// If a field differs or a frame is malformed; the message lists all differences.
pub fn judge(test: &str, frames: &[DissectedFrame]) {
    let fields: BTreeSet<&str> =
        frames.iter().flat_map(|f| f.expected.iter().map(|e| e.0)).collect();
    let fields: Vec<&str> = fields.into_iter().collect();
    let bytes: Vec<&[u8]> = frames.iter().map(|f| f.bytes.as_slice()).collect();
    let Some(rows) = dissect(test, &bytes, &fields) else { return };

    let mut complaints = String::new();
    for (frame, row) in frames.iter().zip(&rows) {
        if !row.malformed.is_empty() && frame.misread.is_none() {
            let _ = writeln!(complaints, "{}: malformed: {}", frame.name, row.malformed);
        }
        for (field, expected) in &frame.expected {
            let found = &row.values[fields.binary_search(field).expect("collected above")];
            if found != expected {
                let _ = writeln!(
                    complaints,
                    "{}: {field}: ours {expected:?}, tshark's {found:?}",
                    frame.name
                );
            }
        }
    }
    assert!(complaints.is_empty(), "tshark disagrees:\n{complaints}");
    let misread: BTreeSet<&str> = frames.iter().filter_map(|frame| frame.misread).collect();
    for reason in misread {
        println!("{test}: not held against us: {reason}");
    }
    println!("{test}: tshark agrees on {} frames", frames.len());
}

/// The result for one frame.
pub struct PacketRow {
    /// The value of each requested field, in the order of the request; several values of a field
    /// are separated by commas.
    pub values: Vec<String>,
    /// tshark's name of the malformed part; empty if there is none.
    pub malformed: String,
}

/// Dissects `fields` of all frames; `None` if tshark is not installed.
///
/// # Panics
/// If tshark fails, or does not know one of the fields.
pub fn dissect(test: &str, frames: &[&[u8]], fields: &[&str]) -> Option<Vec<PacketRow>> {
    dissect_as(test, &FileHeader::INFINIBAND, frames, fields)
}

/// As [`dissect`], for Ethernet frames.
///
/// # Panics
/// If tshark fails, or does not know one of the fields.
pub fn dissect_ethernet(test: &str, frames: &[&[u8]], fields: &[&str]) -> Option<Vec<PacketRow>> {
    dissect_as(test, &FileHeader::ETHERNET, frames, fields)
}

fn dissect_as(
    test: &str,
    header: &FileHeader,
    frames: &[&[u8]],
    fields: &[&str],
) -> Option<Vec<PacketRow>> {
    let tshark = program(test, "tshark")?;
    let mut how = vec!["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"];
    how.extend(["-e", "_ws.malformed"]);
    how.extend(fields.iter().flat_map(|field| ["-e", field]));
    let text = run(&tshark, &file(header, frames), &how);
    let rows: Vec<_> = text.lines().map(row).collect();
    assert_eq!(rows.len(), frames.len(), "tshark printed another number of frames");
    Some(rows)
}

/// tshark's complete dissection of all frames, in JSON; `None` if tshark is not installed.
///
/// # Panics
/// If tshark fails.
pub fn dissect_whole(test: &str, frames: &[&[u8]]) -> Option<String> {
    let tshark = program(test, "tshark")?;
    let how = ["-T", "json", "--no-duplicate-keys"];
    Some(run(&tshark, &file(&FileHeader::INFINIBAND, frames), &how))
}

/// A capture file with these frames.
fn file(header: &FileHeader, frames: &[&[u8]]) -> Vec<u8> {
    let mut capture = header.emit().to_vec();
    for (i, frame) in frames.iter().enumerate() {
        let time = Duration::from_millis(i as u64);
        if *header == FileHeader::ETHERNET {
            capture.extend(capture::ethernet_record(time, frame.len() as u16).emit());
        } else {
            capture.extend(capture::record(time, frame.len()).expect("a test's packet fits"));
        }
        capture.extend_from_slice(frame);
    }
    capture
}

fn row(line: &str) -> PacketRow {
    let mut values: Vec<String> = line.split('\t').map(str::to_owned).collect();
    let malformed = values.remove(0);
    PacketRow { values, malformed }
}

/// Runs tshark on a capture; returns its output.
fn run(tshark: &Path, capture: &[u8], how: &[&str]) -> String {
    let mut command = Command::new(tshark);
    command.args(["-n", "-r", "-"]).args(how);
    for guesser in GUESSERS.split(',') {
        command.args(["--disable-protocol", guesser]);
    }
    for protocol in ["ip", "tcp", "udp"] {
        command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tshark is installed but does not start");
    let mut stdin = child.stdin.take().expect("piped above");
    let capture = capture.to_vec();
    // A thread writes the input, because tshark may fill the pipe of its output, and block, before
    // it has read all of its input.
    let feeder = std::thread::spawn(move || stdin.write_all(&capture));
    let output = child.wait_with_output().expect("tshark's output can be read");
    let fed = feeder.join().expect("the feeder does not panic");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "tshark failed: {complaint}");
    fed.unwrap_or_else(|error| panic!("tshark stopped reading: {error}; {complaint}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
