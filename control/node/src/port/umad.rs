//! The MAD transport by libibumad, for InfiniBand adapters whose queue pair 1 belongs to the
//! kernel.
//!
//! ```text
//!   agent for the SA class: requests, their responses, and reports (notices) of the SA
//!   agent for the CM class: all CM messages, which have one method (ComMgtSend, IBA 16.7.1)
//! ```
//!
//! - **Retries**: control retries. The kernel does not repeat requests, but drops a response if no
//!   request waits for it, so a request waits longer there than at control (`RESPONSE_TIME`).
//! - **Transaction IDs**: the kernel writes the number of the agent into the upper 32 bits, except
//!   for responses, and refuses a request if one with the same lower 32 bits waits. `Sent` has the
//!   64-bit transaction ID of each request, and gives repetitions other lower halves.
//! - **RMPP**: control assembles responses; each segment arrives as a MAD. Kernels before 3.18 and
//!   libumad2sim do not offer that. They lose a response of several segments, but no query of
//!   control needs one.
//! - **Several processes**: at a port, only one agent can receive the requests of a class. Without
//!   the CM class, an interface has no connections ([`Umad::accept_connections`]). If another
//!   process receives the reports, this one gets none, and finds new groups only when it joins
//!   again.
//! - **Groups**: the members of a group are ports, not processes. If the kernel has ib_ipoib, a
//!   port does not leave the groups of an interface, since the kernel's interface may need them:
//!   the SA keeps the port as a member until it goes down.

use super::MadDrops;
use super::port_tables::{pkey_index, sgid_index};
use pollux_control::mad::{Envelope, GlobalAddress, Mad, MadAddress};
use pollux_ibverbs::management::{
    Agent, MadPeer, ManagementPort, ReceivedMad, Registration, Segments, UmadRetryPolicy,
};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::mad::sa::{McMemberRecord, SaMad};
use pollux_wire::mad::{Attribute, MAD_LEN, MadHeader, Method, MgmtClass};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// How long the kernel waits for a response: longer than control's longest timeout.
const RESPONSE_TIME: UmadRetryPolicy =
    UmadRetryPolicy { timeout: Duration::from_secs(4), retries: 0 };
/// Maximum number of requests without a response: more than the SA clients of a port have in that
/// time.
const SENT_MAX: usize = 4096;
/// Maximum number of MADs that are received in one poll.
const BATCH: usize = 64;
/// The step between the lower halves of one transaction ID (odd, so that all are reached).
const REPEAT_STEP: u32 = 0x9e37_79b9;

pub struct Umad {
    management: Box<dyn ManagementPort>,
    sa: Agent,
    cm: Option<Agent>,
    sent: Sent,
    /// Whether the kernel may be in our groups, too.
    shares_groups: bool,
    /// Responses to requests that are answered here, and not sent to the SA.
    answers: Vec<Envelope>,
    pub(super) drops: MadDrops,
}

/// Whether the kernel may have joined groups at InfiniBand ports.
pub fn kernel_has_ipoib() -> bool {
    Path::new("/sys/module/ib_ipoib").exists()
}

impl Umad {
    /// Registers the agent for the SA class. With `shares_groups` the port leaves no group.
    pub fn new(
        mut management: Box<dyn ManagementPort>,
        shares_groups: bool,
    ) -> Result<Self, VerbsError> {
        let sa = register_sa(&mut *management)?;
        Ok(Self {
            management,
            sa,
            cm: None,
            sent: Sent::default(),
            shares_groups,
            answers: Vec::new(),
            drops: MadDrops::default(),
        })
    }

    /// Registers the agent for the CM class, unless it is there already. Fails, with advice, while
    /// another agent has the class.
    pub fn accept_connections(&mut self) -> Result<(), VerbsError> {
        if self.cm.is_none() {
            let registration = Registration::new(MgmtClass::COMM_MGT, &[Method::SEND]);
            self.cm = Some(self.management.register(&registration)?);
        }
        Ok(())
    }

    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.management.descriptor()
    }

    /// Receives MADs. Returns whether there was anything to do. Fails if the port was removed.
    pub fn poll(
        &mut self,
        device: &dyn Device,
        port: u8,
        received: &mut Vec<Envelope>,
    ) -> Result<bool, VerbsError> {
        let is_answered = !self.answers.is_empty();
        received.append(&mut self.answers);
        for count in 0..BATCH {
            let Some(mad) = self.management.receive(Duration::ZERO)? else {
                return Ok(is_answered || count > 0);
            };
            if !mad.is_answered {
                self.sent.forget(&mad);
                continue;
            }
            match take(&mut self.sent, &mad, device, port) {
                Some(envelope) => received.push(envelope),
                None => self.drops.malformed += 1,
            }
        }
        Ok(true)
    }

    /// Sends a MAD. A MAD that the kernel refuses is lost; transactions retry.
    pub fn send(&mut self, device: &dyn Device, port: u8, envelope: &Envelope) {
        if let Some(answer) = self.answer(envelope) {
            return self.answers.push(answer);
        }
        self.drops.unsent += u64::from(self.try_send(device, port, envelope).is_none());
    }

    /// The response to a request to leave a group, if it is not sent to the SA.
    fn answer(&self, envelope: &Envelope) -> Option<Envelope> {
        let mut mad = SaMad::parse(&envelope.mad);
        let MadHeader { mgmt_class, method, attribute_id, .. } = mad.header;
        let leaves = (MgmtClass::SUBN_ADM, Method::DELETE, McMemberRecord::ID);
        let is_ours = self.shares_groups && (mgmt_class, method, attribute_id) == leaves;
        mad.header.method = method.response();
        is_ours.then(|| Envelope { mad: mad.emit(), ..*envelope })
    }

    fn try_send(&mut self, device: &dyn Device, port: u8, envelope: &Envelope) -> Option<()> {
        let (mut header, _) = MadHeader::read(&envelope.mad).ok()?;
        let to = destination(device, port, &envelope.peer)?;
        let (agent, mut mad) = match header.mgmt_class {
            MgmtClass::COMM_MGT => (self.cm?, envelope.mad),
            _ => (self.sa, envelope.mad),
        };
        let mut waits = None;
        if header.mgmt_class == MgmtClass::SUBN_ADM && !header.method.is_response() {
            let low = if SaMad::parse(&mad).rmpp.active {
                self.sent.of_transfer(header.transaction_id)
            } else {
                waits = Some(RESPONSE_TIME);
                self.sent.add(header.transaction_id)
            };
            header.transaction_id = low.into();
            mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        }
        self.management.send(agent, &to, &mad, waits).ok()
    }
}

/// Registers for the SA class: with reports and with RMPP by control, or with less if that is
/// refused.
fn register_sa(management: &mut dyn ManagementPort) -> Result<Agent, VerbsError> {
    let methods: [&[Method]; 2] = [&[Method::REPORT], &[]];
    let choices = methods.into_iter().flat_map(|methods| {
        [Segments::Caller, Segments::None].map(|segments| Registration {
            segments,
            ..Registration::new(MgmtClass::SUBN_ADM, methods)
        })
    });
    let mut refusal = None;
    for registration in choices {
        match management.register(&registration) {
            // Another agent takes reports, or the kernel does not leave RMPP to its users.
            Err(error @ VerbsError::System { errno, .. }) if is_refusal(errno) => {
                refusal = Some(error);
            }
            result => return result,
        }
    }
    Err(refusal.expect("there are choices, and all were refused"))
}

fn is_refusal(errno: i32) -> bool {
    matches!(
        Errno::from_raw_os_error(errno),
        Errno::INVAL | Errno::BUSY | Errno::NOTTY | Errno::OPNOTSUPP
    )
}

/// A received MAD, for control; `None` if it is malformed. A late response has a
/// transaction ID that control does not know.
fn take(
    sent: &mut Sent,
    received: &ReceivedMad<'_>,
    device: &dyn Device,
    port: u8,
) -> Option<Envelope> {
    let (mut header, _) = MadHeader::read(received.datagram).ok()?;
    let mut mad: Mad = [0; MAD_LEN];
    // Zeros at the end may be missing.
    mad.get_mut(..received.datagram.len())?.copy_from_slice(received.datagram);
    let is_answer = header.mgmt_class == MgmtClass::SUBN_ADM && header.method.is_response();
    if is_answer {
        let low = header.transaction_id as u32;
        let transaction_id = match SaMad::parse(&mad).rmpp.active {
            true => sent.begin_transfer(low),
            false => sent.remove(low),
        };
        header.transaction_id = transaction_id.unwrap_or_else(|| low.into());
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
    }
    Some(Envelope { peer: source(device, port, &received.peer)?, mad })
}

/// The source of a MAD, to which a response goes.
fn source(device: &dyn Device, port: u8, peer: &MadPeer) -> Option<MadAddress> {
    let global = match peer.grh {
        None => None,
        Some(grh) => Some(GlobalAddress {
            remote_gid: grh.dgid,
            local_gid: device.gid(port, grh.sgid_index).ok()?,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        }),
    };
    Some(MadAddress {
        lid: peer.lid,
        path_bits: peer.path_bits,
        sl: peer.sl,
        qpn: peer.qpn,
        p_key: device.pkey(port, peer.pkey_index).ok()?,
        global,
    })
}

/// The destination of a MAD; `None` if the port is not in its partition.
fn destination(device: &dyn Device, port: u8, peer: &MadAddress) -> Option<MadPeer> {
    Some(MadPeer {
        lid: peer.lid,
        qpn: peer.qpn,
        sl: peer.sl,
        path_bits: peer.path_bits,
        grh: peer.global.map(|global| global.route(sgid_index(device, port, global.local_gid))),
        pkey_index: pkey_index(device, port, peer.p_key)?,
    })
}

/// The transaction IDs of requests, by the lower half that each was sent with.
#[derive(Default)]
struct Sent {
    requests: BTreeMap<u32, SentRequest>,
    count: u64,
}

struct SentRequest {
    transaction_id: u64,
    /// Counts up: the lowest is the oldest.
    order: u64,
}

impl Sent {
    /// The lower half for a request, or for a repetition of it.
    fn add(&mut self, transaction_id: u64) -> u32 {
        if self.requests.len() == SENT_MAX {
            let oldest = self.requests.iter().min_by_key(|(_, request)| request.order);
            if let Some(low) = oldest.map(|(low, _)| *low) {
                self.requests.remove(&low);
            }
        }
        let mut low = transaction_id as u32;
        while self.requests.contains_key(&low) {
            low = low.wrapping_add(REPEAT_STEP);
        }
        self.count += 1;
        self.requests.insert(low, SentRequest { transaction_id, order: self.count });
        low
    }

    /// Removes a request, and returns its transaction ID.
    fn remove(&mut self, low: u32) -> Option<u64> {
        self.requests.remove(&low).map(|request| request.transaction_id)
    }

    /// Removes a request that the kernel has returned, because there was no response.
    fn forget(&mut self, request: &ReceivedMad<'_>) {
        if let Ok((header, _)) = MadHeader::read(request.datagram) {
            self.remove(header.transaction_id as u32);
        }
    }

    /// The transaction ID of a request that is answered in segments. Its repetitions are forgotten,
    /// since the transfer has this lower half.
    fn begin_transfer(&mut self, low: u32) -> Option<u64> {
        let transaction_id = self.requests.get(&low)?.transaction_id;
        self.requests
            .retain(|known, request| *known == low || request.transaction_id != transaction_id);
        Some(transaction_id)
    }

    /// The lower half for an ACK of a transfer.
    fn of_transfer(&self, transaction_id: u64) -> u32 {
        let mut requests = self.requests.iter();
        let known = requests.find(|(_, request)| request.transaction_id == transaction_id);
        known.map_or(transaction_id as u32, |(low, _)| *low)
    }
}

#[cfg(test)]
mod tests;
