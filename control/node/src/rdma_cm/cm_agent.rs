//! The agent for the CM messages of all programs at a port of a fabric.

use super::RdmaCmServiceError;
use pollux_control::ipoib::PortView;
use pollux_control::mad::{Envelope, GlobalAddress, MadAddress};
use pollux_fabric::link::threads::Clock;
use pollux_fabric::net::agent_mad::{AgentGrh, AgentMad};
use pollux_fabric::process::AgentPort;
use pollux_fabric::process::agent_message::{AgentMessage, AgentRegistration};
use pollux_wire::mad::{Method, MgmtClass};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The wait for the answer of the fabric: at most this many waits, each this long.
const ANSWER_WAITS_MAX: u32 = 50;
const ANSWER_WAIT: Duration = Duration::from_millis(100);

pub(super) struct CmAgent {
    port: AgentPort,
    number: u32,
}

impl CmAgent {
    /// Registers the agent. Fails while another agent at the port receives CM messages.
    pub(super) fn open(name: &str, secret: u64, clock: &Clock) -> Result<Self, RdmaCmServiceError> {
        let port = AgentPort::open(name, secret, false, clock)
            .map_err(|error| RdmaCmServiceError::Agent(error.to_string()))?;
        let class = MgmtClass::COMM_MGT;
        let registration = AgentRegistration {
            class: class.0,
            version: class.version(),
            oui: [0; 3],
            methods: 1 << Method::SEND.0,
        };
        let failed = |error: Errno| RdmaCmServiceError::Agent(error.to_string());
        port.send(&AgentMessage::Register(registration)).map_err(failed)?;
        for _ in 0..ANSWER_WAITS_MAX {
            match port.receive() {
                Ok(AgentMessage::Registered(Some(number))) => return Ok(Self { port, number }),
                Ok(AgentMessage::Registered(None)) => {
                    return Err(RdmaCmServiceError::Taken(name.into()));
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    let timeout = Timespec::try_from(ANSWER_WAIT).ok();
                    let _ = poll(&mut [PollFd::new(&port, PollFlags::IN)], timeout.as_ref());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(Errno::TIMEDOUT))
    }

    /// The next message; an error if the fabric has ended.
    pub(super) fn receive(&self, view: &PortView) -> Result<Option<Envelope>, Errno> {
        loop {
            match self.port.receive() {
                Ok(AgentMessage::Mad(mad)) => {
                    if let Some(envelope) = to_envelope(&mad, view) {
                        return Ok(Some(envelope));
                    }
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a message. A message that does not fit is lost, and repeated later.
    pub(super) fn send(&self, envelope: &Envelope, view: &PortView) {
        if let Some(mad) = to_mad(envelope, view, self.number) {
            let _ = self.port.send(&AgentMessage::Mad(mad));
        }
    }
}

impl AsFd for CmAgent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

fn to_envelope(mad: &AgentMad, view: &PortView) -> Option<Envelope> {
    let global = mad.grh.map(|grh| GlobalAddress {
        remote_gid: grh.gid,
        local_gid: view.gids.get(usize::from(grh.gid_index)).copied().unwrap_or_default(),
        flow_label: grh.flow_label,
        hop_limit: u8::MAX,
        traffic_class: grh.traffic_class,
    });
    let peer = MadAddress {
        lid: mad.lid,
        path_bits: mad.path_bits,
        sl: mad.sl,
        qpn: mad.qpn,
        p_key: *view.pkeys.get(usize::from(mad.p_key_index))?,
        global,
    };
    Some(Envelope { peer, mad: mad.mad })
}

fn to_mad(envelope: &Envelope, view: &PortView, agent: u32) -> Option<AgentMad> {
    let Envelope { peer, mad } = *envelope;
    let matches = |known: &_| peer.p_key.matches(*known);
    let grh = peer.global.map(|global| AgentGrh {
        gid_index: view.gids.iter().position(|gid| *gid == global.local_gid).unwrap_or(0) as u8,
        hop_limit: global.hop_limit,
        traffic_class: global.traffic_class,
        flow_label: global.flow_label,
        gid: global.remote_gid,
    });
    Some(AgentMad {
        agent,
        lid: peer.lid,
        qpn: peer.qpn,
        sl: peer.sl,
        path_bits: peer.path_bits,
        p_key_index: view.pkeys.iter().position(matches)? as u16,
        grh,
        mad,
    })
}
