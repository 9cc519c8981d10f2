//! The files of a port that change while programs run: state, LIDs, rate, capabilities and
//! counters, with the values of the fabric. They are in a folder in the form of `/sys`.

use crate::admin::client::{AskError, Client};
use crate::admin::request::AdminRequest;
use crate::admin::rows::PortDetails;
use crate::programs::ProgramError;
use pollux_fabric::process::PortAddress;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout for an answer of the fabric.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const DOWN: u8 = 1;

#[derive(Debug)]
pub(super) struct PortFiles {
    /// The root folder. New files are written here before they replace others.
    root: PathBuf,
    /// The folder of the port.
    folder: PathBuf,
    /// The admin socket of the fabric.
    socket: PathBuf,
    request: AdminRequest,
}

impl PortFiles {
    /// `port` is the device name of the port.
    pub(super) fn new(root: &Path, folder: PathBuf, port: &str) -> Result<Self, ProgramError> {
        let (socket, request) = port_request(port)?;
        Ok(Self { root: root.into(), folder, socket, request })
    }

    /// Reads the port from the fabric.
    pub(super) fn read(&self) -> Result<PortDetails, AskError> {
        let client = Client::new(&self.socket, Duration::ZERO).silence_max(ANSWER_TIMEOUT);
        client.ask(&self.request, &mut |_, _| false)
    }

    /// Marks the port as down, after its fabric has ended. All other files stay.
    pub(super) fn write_down(&self) -> io::Result<()> {
        self.put("state", &state_text(DOWN))
    }

    pub(super) fn write(&self, port: &PortDetails) -> io::Result<()> {
        for (name, text) in [
            ("state", state_text(port.state)),
            ("phys_state", physical_state_text(port.physical_state)),
            ("lid", format!("{:#x}", port.lid)),
            ("lid_mask_count", port.lmc.to_string()),
            ("sm_lid", format!("{:#x}", port.sm_lid)),
            ("sm_sl", port.sm_sl.to_string()),
            ("rate", rate_text(port)),
            ("cap_mask", format!("{:#010x}", port.capability_mask)),
        ] {
            self.put(name, &text)?;
        }
        for (name, count) in &port.counters {
            self.put(&format!("counters/{name}"), &count.to_string())?;
        }
        Ok(())
    }

    /// Replaces a file if its text has changed. A reader sees the old text or the new one, never a
    /// part.
    fn put(&self, name: &str, text: &str) -> io::Result<()> {
        let (file, text) = (self.folder.join(name), format!("{text}\n"));
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        let new = self.root.join("new");
        fs::write(&new, text)?;
        fs::rename(new, file)
    }
}

/// The socket and the request for the attributes of `soft:PATH@NODE[:PORT]`.
pub fn port_request(name: &str) -> Result<(PathBuf, AdminRequest), ProgramError> {
    let address = PortAddress::parse(name).ok_or_else(|| ProgramError::Name(name.into()))?;
    Ok((address.path, AdminRequest::Port { node: address.node, port: address.port }))
}

/// The port state as Linux writes it: number and name.
fn state_text(state: u8) -> String {
    let names = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    format!("{state}: {}", names.get(usize::from(state)).unwrap_or(&"<unknown>"))
}

fn physical_state_text(state: u8) -> String {
    const NAMES: [&str; 8] = [
        "<unknown>",
        "Sleep",
        "Polling",
        "Disabled",
        "PortConfigurationTraining",
        "LinkUp",
        "LinkErrorRecovery",
        "Phy Test",
    ];
    format!("{state}: {}", NAMES.get(usize::from(state)).unwrap_or(&NAMES[0]))
}

/// The nominal rate, the width and the name of the speed, as in `100 Gb/sec (4X EDR)`.
fn rate_text(port: &PortDetails) -> String {
    let megabits = port.megabits.unwrap_or(0);
    let half = if megabits % 1000 == 500 { ".5" } else { "" };
    format!("{}{half} Gb/sec ({})", megabits / 1000, port.link.replacen('x', "X ", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_linux() {
        assert_eq!([1, 2, 4].map(state_text), ["1: DOWN", "2: INIT", "4: ACTIVE"]);
        assert_eq!([2, 5].map(physical_state_text), ["2: Polling", "5: LinkUp"]);
        for (megabits, link, text) in [
            (100_000, "4xEDR", "100 Gb/sec (4X EDR)"),
            (2_500, "1xSDR", "2.5 Gb/sec (1X SDR)"),
            (56_000, "4xFDR", "56 Gb/sec (4X FDR)"),
        ] {
            let port = PortDetails {
                megabits: Some(megabits),
                link: link.into(),
                ..PortDetails::default()
            };
            assert_eq!(rate_text(&port), text);
        }
    }
}
