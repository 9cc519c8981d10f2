//! Capture of all packets of a fabric to a pcap file with ERF records, which Wireshark reads.

use pollux_fabric::net::Net;
use pollux_wire::capture::{FileHeader, record};
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub struct Capture {
    written: Arc<Mutex<Written>>,
}

struct Written {
    file: Box<dyn Write + Send>,
    failed: Option<io::Error>,
}

impl Capture {
    /// Begins a capture of all links. The file is private to its owner.
    #[expect(
        clippy::disallowed_methods,
        reason = "what time packets are of is the machine's to say"
    )]
    pub fn begin(path: &Path, net: &mut Net) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut file = Box::new(BufWriter::new(file));
        file.write_all(&FileHeader::INFINIBAND.emit())?;
        let written = Arc::new(Mutex::new(Written { file, failed: None }));
        let tapped = Arc::clone(&written);
        let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        net.set_tap(Box::new(move |now, _, bytes| {
            let mut written = tapped.lock().unwrap_or_else(PoisonError::into_inner);
            let Ok(headers) = record(begin + now.since_start(), bytes.len()) else { return };
            if written.failed.is_none() {
                let result = written.file.write_all(&headers);
                written.failed = result.and_then(|()| written.file.write_all(bytes)).err();
            }
        }));
        Ok(Self { written })
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.failed.take() {
            Some(error) => Err(error),
            None => written.file.flush(),
        }
    }
}
