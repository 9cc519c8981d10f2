//! The agents of an open file of umad: requests and their responses, timeouts, retries, and RMPP.
//!
//! ```text
//! write   request with a timeout --sent--> pending --response--> read by the program
//!                                             |  no response: sent again, `retries` times
//!                                             +--> read by the program with ETIMEDOUT
//!         response longer than a MAD: sent in segments ([`Transfers`])
//! arrival request, or the response to a pending request --> read by the program
//!         segment --> reassembled ([`Reception`]) --last segment--> as above
//!         response without a pending request: dropped
//! ```
//!
//! There is no I/O and no clock here: [`Agents::poll_transmit`] returns messages for the fabric.

use super::abi::{AgentRequest, Header, OLD_HEADER_BYTES};
use pollux_fabric::net::agent_mad::{AgentGrh, AgentMad};
use pollux_fabric::process::agent_message::{AgentMessage, AgentRegistration};
use pollux_verbs::rmpp::{Reception, SegmentOutcome, TRANSFER_BYTES_MAX, Transfers};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::rmpp::{RmppHeader, RmppType};
use pollux_wire::mad::sa::{SaHeader, SaMad};
use pollux_wire::mad::{MAD_LEN, MadHeader, MgmtClass};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Agents of an open file, at most.
pub(super) const AGENTS_MAX: u32 = 32;
/// Unread messages of an open file, at most. Further messages are dropped, as by the kernel.
const RECEIVED_MAX: usize = 200_000;
/// Transfers received at the same time, at most. Segments of further transfers are dropped.
const RECEPTIONS_MAX: usize = 256;
/// The longest duration of a received transfer.
const RECEPTION_TIME: Duration = Duration::from_secs(40);
/// The length of the headers that each segment of subnet administration repeats.
const SA_HEADERS: usize = MadHeader::LEN + RmppHeader::LEN + SaHeader::LEN;
/// The shortest MAD that a program may write.
const WRITE_MIN: usize = MadHeader::LEN + RmppHeader::LEN;

pub(super) struct Agents {
    /// Whether headers contain the P_Key index.
    has_p_key: bool,
    agents: BTreeMap<u32, Agent>,
    /// Messages that the program has not read yet.
    received: VecDeque<Received>,
    pending: BTreeMap<RequestKey, Pending>,
    transfers: Transfers<TransferKey>,
    /// The headers of outgoing transfers, as the program wrote them.
    sent: BTreeMap<TransferKey, Header>,
    receptions: BTreeMap<TransferKey, Incoming>,
    outgoing: VecDeque<AgentMessage>,
}

struct Agent {
    /// The fabric's number of the agent, which is the upper half of the TIDs of its requests.
    number: u32,
    has_rmpp: bool,
}

struct Received {
    header: Header,
    mad: Vec<u8>,
}

/// A request, by its TID and class.
type RequestKey = (u64, u8);

struct Pending {
    deadline: Time,
    retries_left: u32,
    header: Header,
    mad: [u8; MAD_LEN],
}

/// A transfer, by its agent, its TID and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TransferKey {
    agent: u32,
    transaction_id: u64,
    lid: Lid,
    qpn: Qpn,
}

struct Incoming {
    first: [u8; MAD_LEN],
    reception: Reception,
    deadline: Time,
}

impl Agents {
    pub(super) fn new() -> Self {
        Self {
            has_p_key: false,
            agents: BTreeMap::new(),
            received: VecDeque::new(),
            pending: BTreeMap::new(),
            transfers: Transfers::default(),
            sent: BTreeMap::new(),
            receptions: BTreeMap::new(),
            outgoing: VecDeque::new(),
        }
    }

    // ---------------------------------------------------------------- agents

    /// Adds the P_Key index to headers. Fails if the file already has an agent.
    pub(super) fn enable_p_key(&mut self) -> Result<(), Errno> {
        if !self.agents.is_empty() {
            return Err(Errno::INVAL);
        }
        self.has_p_key = true;
        Ok(())
    }

    /// A free number for a new agent; `None` if the file has [`AGENTS_MAX`] agents.
    pub(super) fn free_id(&self) -> Option<u32> {
        (0..AGENTS_MAX).find(|id| !self.agents.contains_key(id))
    }

    pub(super) fn insert(&mut self, id: u32, number: u32, request: &AgentRequest) {
        self.agents.insert(id, Agent { number, has_rmpp: request.has_rmpp });
    }

    /// Removes an agent, with its pending requests and unread messages.
    pub(super) fn remove(&mut self, id: u32) -> Result<(), Errno> {
        let agent = self.agents.remove(&id).ok_or(Errno::INVAL)?;
        self.outgoing.push_back(AgentMessage::Unregister { agent: agent.number });
        self.pending.retain(|_, pending| pending.header.id != id);
        self.receptions.retain(|key, _| key.agent != agent.number);
        self.received.retain(|received| received.header.id != id);
        Ok(())
    }

    // ---------------------------------------------------------------- the program

    const fn header_bytes(&self) -> usize {
        if self.has_p_key { size_of::<Header>() } else { OLD_HEADER_BYTES }
    }

    /// Handles a `write` of the program.
    pub(super) fn write(&mut self, now: Time, bytes: &[u8]) -> Result<(), Errno> {
        let header_bytes = self.header_bytes();
        if bytes.len() < header_bytes + WRITE_MIN {
            return Err(Errno::INVAL);
        }
        let mut header = [0; size_of::<Header>()];
        header[..header_bytes].copy_from_slice(&bytes[..header_bytes]);
        let header = Header::read_from_bytes(&header).map_err(|_| Errno::INVAL)?;
        if header.id >= AGENTS_MAX {
            return Err(Errno::INVAL);
        }
        let agent = self.agents.get(&header.id).ok_or(Errno::IO)?;
        let (number, has_rmpp) = (agent.number, agent.has_rmpp);
        let all = &bytes[header_bytes..];
        let mut mad = [0; MAD_LEN];
        let first = all.len().min(MAD_LEN);
        mad[..first].copy_from_slice(&all[..first]);
        let method = header_of(&mad).method;
        if !method.is_response() {
            mad[8..12].copy_from_slice(&number.to_be_bytes());
        }
        // The RMPP type that the program writes is ignored, as by the kernel.
        if has_rmpp && is_rmpp(&mad) {
            return self.start_transfer(now, number, header, &mad, all);
        }
        if all.len() > MAD_LEN {
            return Err(Errno::INVAL);
        }
        if !method.is_response() {
            self.await_response(now, header, mad)?;
        }
        self.send(&header, number, mad);
        Ok(())
    }

    fn await_response(
        &mut self,
        now: Time,
        header: Header,
        mad: [u8; MAD_LEN],
    ) -> Result<(), Errno> {
        let key = request_key(&mad);
        if self.pending.contains_key(&key) {
            return Err(Errno::INVAL);
        }
        if header.timeout_ms > 0 {
            let deadline = now + timeout(&header);
            let pending = Pending { deadline, retries_left: header.retries, header, mad };
            self.pending.insert(key, pending);
        }
        Ok(())
    }

    /// Starts to send a table in segments.
    fn start_transfer(
        &mut self,
        now: Time,
        agent: u32,
        header: Header,
        mad: &[u8; MAD_LEN],
        all: &[u8],
    ) -> Result<(), Errno> {
        let table = all.get(SA_HEADERS..).ok_or(Errno::INVAL)?.to_vec();
        let head = SaMad { data: [0; 200], ..SaMad::parse(mad) };
        let (lid, qpn) = (Lid(header.lid.get()), Qpn(header.qpn.get()));
        let key = TransferKey { agent, transaction_id: head.header.transaction_id, lid, qpn };
        if self.transfers.contains(&key) {
            return Err(Errno::INVAL);
        }
        if !self.transfers.can_start(table.len()) {
            return Err(Errno::NOMEM);
        }
        if !head.header.method.is_response() {
            self.await_response(now, header, *mad)?;
        }
        self.sent.insert(key, header);
        self.transfers.start(now, key, head, table);
        self.send_segments(now);
        Ok(())
    }

    /// Handles a `read` of the program. Returns the number of bytes. If a table does not fit, the
    /// buffer gets its first segment, the call fails with ENOSPC, and the table can be read again.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let header_bytes = self.header_bytes();
        if buffer.len() < header_bytes {
            return Err(Errno::INVAL);
        }
        let Received { header, mad } = self.received.front().ok_or(Errno::AGAIN)?;
        let first = mad.len().min(MAD_LEN);
        let (space_header, space) = buffer.split_at_mut(header_bytes);
        if space.len() < first {
            return Err(Errno::INVAL);
        }
        let length = (header_bytes + mad.len()) as u32;
        let header = Header { length, ..*header };
        space_header.copy_from_slice(&header.as_bytes()[..header_bytes]);
        space[..first].copy_from_slice(&mad[..first]);
        let rest = space.get_mut(first..mad.len()).ok_or(Errno::NOSPC)?;
        rest.copy_from_slice(&mad[first..]);
        self.received.pop_front();
        Ok(length as usize)
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.received.is_empty()
    }

    // ---------------------------------------------------------------- the fabric

    /// The next message for the fabric.
    pub(super) fn poll_transmit(&mut self) -> Option<AgentMessage> {
        self.outgoing.pop_front()
    }

    /// Puts back a message that could not be sent yet.
    pub(super) fn hold(&mut self, message: AgentMessage) {
        self.outgoing.push_front(message);
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Handles a MAD from the fabric.
    pub(super) fn handle(&mut self, now: Time, mad: &AgentMad) {
        let mut agents = self.agents.iter();
        let Some((&id, agent)) = agents.find(|(_, agent)| agent.number == mad.agent) else {
            return;
        };
        let header = header_from(id, mad);
        if !agent.has_rmpp || !is_rmpp(&mad.mad) {
            return self.give(header, &mad.mad, &[]);
        }
        let segment = SaMad::parse(&mad.mad);
        let transaction_id = segment.header.transaction_id;
        let key = TransferKey { agent: mad.agent, transaction_id, lid: mad.lid, qpn: mad.qpn };
        if segment.rmpp.rmpp_type != RmppType::DATA && self.transfers.contains(&key) {
            let abort = self.transfers.handle_reply(now, key, &segment.rmpp);
            abort.into_iter().for_each(|(key, mad)| self.send_segment(key, mad));
            return self.send_segments(now);
        }
        self.receive_segment(now, key, header, &segment, mad);
    }

    fn receive_segment(
        &mut self,
        now: Time,
        key: TransferKey,
        header: Header,
        segment: &SaMad,
        mad: &AgentMad,
    ) {
        let is_new = segment.rmpp.rmpp_type == RmppType::DATA && segment.rmpp.first;
        if is_new && self.receptions.len() < RECEPTIONS_MAX && !self.receptions.contains_key(&key) {
            let (reception, deadline) = (Reception::default(), now + RECEPTION_TIME);
            self.receptions.insert(key, Incoming { first: mad.mad, reception, deadline });
        }
        let Some(incoming) = self.receptions.get_mut(&key) else { return };
        let outcome = incoming.reception.receive(segment, TRANSFER_BYTES_MAX);
        // The sender is active, so restart the timeout of the request.
        if let Some(pending) = self.pending.get_mut(&request_key(&mad.mad)) {
            pending.deadline = now + timeout(&pending.header);
        }
        let (reply, is_over) = match &outcome {
            SegmentOutcome::Ignored | SegmentOutcome::Kept => (None, false),
            SegmentOutcome::Acknowledged(reply) => (Some(*reply), false),
            SegmentOutcome::Complete(reply) | SegmentOutcome::Aborted(_, reply) => {
                (Some(*reply), true)
            }
            SegmentOutcome::Ended(_) => (None, true),
        };
        if let Some(reply) = reply {
            self.outgoing.push_back(AgentMessage::Mad(AgentMad { mad: reply, ..*mad }));
        }
        if !is_over {
            return;
        }
        let Some(incoming) = self.receptions.remove(&key) else { return };
        if matches!(outcome, SegmentOutcome::Complete(_)) {
            let table = incoming.reception.into_table();
            self.give(header, &incoming.first[..SA_HEADERS], &table);
        }
    }

    /// Queues a MAD for the program, if it is a request or the response to a pending request.
    fn give(&mut self, header: Header, head: &[u8], rest: &[u8]) {
        let mut first = [0; MAD_LEN];
        first[..head.len()].copy_from_slice(head);
        let is_response = header_of(&first).method.is_response();
        if is_response && self.pending.remove(&request_key(&first)).is_none() {
            return;
        }
        self.push(Received { header, mad: [head, rest].concat() });
    }

    fn push(&mut self, received: Received) {
        if self.received.len() < RECEIVED_MAX {
            self.received.push_back(received);
        }
    }

    fn send(&mut self, header: &Header, agent: u32, mad: [u8; MAD_LEN]) {
        let grh = AgentGrh {
            gid_index: header.gid_index,
            hop_limit: header.hop_limit,
            traffic_class: header.traffic_class,
            flow_label: header.flow_label.get(),
            gid: Gid(header.gid),
        };
        self.outgoing.push_back(AgentMessage::Mad(AgentMad {
            agent,
            lid: Lid(header.lid.get()),
            qpn: Qpn(header.qpn.get()),
            sl: header.sl,
            path_bits: header.path_bits,
            p_key_index: header.p_key_index,
            grh: (header.grh_present != 0).then_some(grh),
            mad,
        }));
    }

    /// Sends all segments that the receivers' windows allow.
    fn send_segments(&mut self, now: Time) {
        while let Some((key, mad)) = self.transfers.poll_transmit(now) {
            self.send_segment(key, mad);
        }
        self.sent.retain(|key, _| self.transfers.contains(key));
    }

    fn send_segment(&mut self, key: TransferKey, mad: [u8; MAD_LEN]) {
        if let Some(header) = self.sent.get(&key).copied() {
            self.send(&header, key.agent, mad);
        }
    }

    // ---------------------------------------------------------------- time

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let pending = self.pending.values().map(|pending| pending.deadline);
        let receptions = self.receptions.values().map(|incoming| incoming.deadline);
        pending.chain(receptions).chain(self.transfers.poll_timeout()).min()
    }

    /// Repeats overdue requests, and returns those without remaining retries to the program.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.receptions.retain(|_, incoming| incoming.deadline > now);
        let overdue = self.pending.iter().filter(|(_, pending)| pending.deadline <= now);
        let overdue: Vec<_> = overdue.map(|(key, _)| *key).collect();
        for key in overdue {
            let Some(pending) = self.pending.get_mut(&key) else { continue };
            let (header, mad) = (pending.header, pending.mad);
            if pending.retries_left > 0 {
                pending.retries_left -= 1;
                pending.deadline = now + timeout(&header);
                self.send(&header, (key.0 >> 32) as u32, mad);
            } else {
                self.pending.remove(&key);
                self.fail(header, &mad);
            }
        }
        while let Some((key, abort)) = self.transfers.handle_timeout(now) {
            self.send_segment(key, abort);
            if let Some(header) = self.sent.remove(&key) {
                self.fail(header, &abort);
            }
        }
        self.send_segments(now);
    }

    /// Returns the header of a failed message to the program, with ETIMEDOUT, as the kernel does.
    fn fail(&mut self, header: Header, mad: &[u8; MAD_LEN]) {
        let status = Errno::TIMEDOUT.raw_os_error() as u32;
        let header = Header { status, ..header };
        self.push(Received { header, mad: mad[..MadHeader::LEN].to_vec() });
    }
}

impl AgentRequest {
    pub(super) fn registration(&self) -> AgentRegistration {
        let Self { class, version, oui, methods, .. } = *self;
        AgentRegistration { class, version, oui, methods }
    }
}

fn timeout(header: &Header) -> Duration {
    Duration::from_millis(header.timeout_ms.into())
}

fn header_of(mad: &[u8; MAD_LEN]) -> MadHeader {
    SaMad::parse(mad).header
}

fn request_key(mad: &[u8; MAD_LEN]) -> RequestKey {
    let header = header_of(mad);
    (header.transaction_id, header.mgmt_class.0)
}

fn is_rmpp(mad: &[u8; MAD_LEN]) -> bool {
    let mad = SaMad::parse(mad);
    mad.header.mgmt_class == MgmtClass::SUBN_ADM && mad.rmpp.active
}

fn header_from(id: u32, mad: &AgentMad) -> Header {
    let grh = mad.grh.unwrap_or_default();
    Header {
        id,
        qpn: mad.qpn.0.into(),
        lid: mad.lid.0.into(),
        sl: mad.sl,
        path_bits: mad.path_bits,
        grh_present: mad.grh.is_some().into(),
        gid_index: grh.gid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        gid: grh.gid.0,
        flow_label: grh.flow_label.into(),
        p_key_index: mad.p_key_index,
        ..Header::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::Method;
    use pollux_wire::mad::sa::{NodeRecord, NodeRecordMask};

    const HEADER: usize = size_of::<Header>();

    /// A file with one agent with RMPP. The fabric's number of the agent is the LID of its port.
    fn file(lid: u32) -> Agents {
        let mut file = Agents::new();
        file.enable_p_key().unwrap();
        let (class, version, methods) = (3, 2, 1 << 0x12);
        let request = AgentRequest { class, version, oui: [0; 3], methods, has_rmpp: true };
        file.insert(0, lid, &request);
        file
    }

    fn written(header: Header, mad: &[u8]) -> Vec<u8> {
        [header.as_bytes(), mad].concat()
    }

    fn to(lid: u16, timeout_ms: u32, retries: u32) -> Header {
        let (qpn, lid) = (1.into(), lid.into());
        Header { qpn, lid, timeout_ms, retries, ..Header::default() }
    }

    fn query(method: Method, transaction_id: u64) -> SaMad {
        SaMad::new(method, transaction_id, NodeRecordMask::from(0), NodeRecord::default())
    }

    /// Moves all MADs between two files. Returns their number.
    fn exchange(now: Time, files: [&mut Agents; 2]) -> usize {
        let [one, two] = files;
        let mut count = 0;
        loop {
            let before = count;
            for lid in [1, 2] {
                let (from, to) =
                    if lid == 1 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
                while let Some(AgentMessage::Mad(mad)) = from.poll_transmit() {
                    assert_eq!((mad.agent, u32::from(mad.lid.0)), (lid, 3 - lid));
                    to.handle(now, &AgentMad { agent: 3 - lid, lid: Lid(lid as u16), ..mad });
                    count += 1;
                }
            }
            if count == before {
                return count;
            }
        }
    }

    fn read(file: &mut Agents) -> (Header, Vec<u8>) {
        let mut buffer = vec![0; 1 << 20];
        let bytes = file.read(&mut buffer).unwrap();
        let header = Header::read_from_bytes(&buffer[..HEADER]).unwrap();
        assert_eq!(header.length as usize, bytes);
        (header, buffer[HEADER..bytes].to_vec())
    }

    #[test]
    fn a_request_without_a_response_is_repeated_and_returned() {
        let (mut file, mut now) = (file(1), Time::START);
        let mad = query(Method::GET, 0xffff_ffff_0000_0007).emit();
        file.write(now, &written(to(2, 100, 2), &mad)).unwrap();
        assert_eq!(file.write(now, &written(to(2, 100, 2), &mad)), Err(Errno::INVAL), "again");
        for _ in 0..3 {
            let Some(AgentMessage::Mad(sent)) = file.poll_transmit() else { panic!() };
            assert_eq!(header_of(&sent.mad).transaction_id, 1 << 32 | 7);
            assert!(file.poll_transmit().is_none() && !file.is_readable());
            now = file.poll_timeout().unwrap();
            file.handle_timeout(now);
        }
        assert_eq!(now, Time::START + Duration::from_millis(300));
        let (header, mad) = read(&mut file);
        assert_eq!((header.status, mad.len()), (110, MadHeader::LEN));
        assert_eq!(mad[8..16], (1_u64 << 32 | 7).to_be_bytes());
        assert!(file.poll_timeout().is_none() && !file.is_readable());
    }

    #[test]
    fn a_table_is_segmented_and_joined_and_read_by_a_buffer_that_holds_it() {
        let (mut one, mut two) = (file(1), file(2));
        let now = Time::START;
        one.write(now, &written(to(2, 100, 0), &query(Method::GET_TABLE, 9).emit())).unwrap();
        assert_eq!(exchange(now, [&mut one, &mut two]), 1);
        let (_, asked) = read(&mut two);
        let table: Vec<u8> = (0..30_000).map(|at: u32| (at * 7) as u8).collect();
        let mut head =
            query(Method::GET_TABLE_RESP, header_of(asked[..].try_into().unwrap()).transaction_id);
        head.rmpp = RmppHeader { active: true, ..RmppHeader::default() };
        let all = [&head.emit()[..SA_HEADERS], &table].concat();
        two.write(now, &written(to(1, 0, 0), &all)).unwrap();
        assert_eq!(two.write(now, &written(to(1, 0, 0), &all)), Err(Errno::INVAL), "again");
        // 150 segments, and 4 acknowledgments: after the first segment, each window, and the last.
        assert_eq!(exchange(now, [&mut one, &mut two]), 150 + 4);
        let mut small = vec![0; HEADER + 1000];
        assert_eq!(one.read(&mut small[..HEADER - 1]), Err(Errno::INVAL));
        assert_eq!(one.read(&mut small[..HEADER + 255]), Err(Errno::INVAL));
        assert_eq!(one.read(&mut small), Err(Errno::NOSPC));
        let needed = Header::read_from_bytes(&small[..HEADER]).unwrap().length;
        assert_eq!(needed as usize, HEADER + SA_HEADERS + table.len());
        let (header, mad) = read(&mut one);
        assert_eq!((header.status, header.lid.get()), (0, 2));
        assert!(mad[SA_HEADERS..] == table);
        assert!(two.poll_timeout().is_none() && two.sent.is_empty(), "nothing is left");
    }

    #[test]
    fn a_table_that_is_not_acknowledged_is_returned() {
        let mut file = file(1);
        let mut head = query(Method::GET_TABLE_RESP, 9);
        head.rmpp = RmppHeader { active: true, ..RmppHeader::default() };
        let all = [&head.emit()[..], &[0; 500]].concat();
        file.write(Time::START, &written(to(2, 0, 0), &all)).unwrap();
        while let Some(due) = file.poll_timeout() {
            file.handle_timeout(due);
        }
        assert_eq!(read(&mut file).0.status, 110);
        assert!(file.sent.is_empty());
    }

    #[test]
    fn responses_are_for_requests_that_wait() {
        let (mut one, mut two) = (file(1), file(2));
        for (timeout_ms, is_expected) in [(100, true), (0, false)] {
            let request = query(Method::GET, 3).emit();
            one.write(Time::START, &written(to(2, timeout_ms, 0), &request)).unwrap();
            exchange(Time::START, [&mut one, &mut two]);
            let mut response = read(&mut two).1;
            response[3] |= 0x80;
            two.write(Time::START, &written(to(1, 0, 0), &response)).unwrap();
            two.write(Time::START, &written(to(1, 0, 0), &response)).unwrap();
            exchange(Time::START, [&mut one, &mut two]);
            assert_eq!(one.is_readable(), is_expected);
            if is_expected {
                assert_eq!(read(&mut one).1, response);
            }
            assert!(!one.is_readable(), "a second one is dropped");
        }
    }

    #[test]
    fn writes_are_refused_with_the_errors_of_the_kernel() {
        let mut file = file(1);
        let mad = query(Method::GET, 1).emit();
        let mut write = |id, bytes: &[u8]| {
            file.write(Time::START, &written(Header { id, ..to(2, 0, 0) }, bytes)).err()
        };
        assert_eq!(write(0, &mad), None);
        assert_eq!(write(0, &mad[..WRITE_MIN]), None);
        assert_eq!(write(0, &mad[..WRITE_MIN - 1]), Some(Errno::INVAL));
        assert_eq!(write(0, &[0; 257]), Some(Errno::INVAL));
        assert_eq!(write(1, &mad), Some(Errno::IO), "no such agent");
        assert_eq!(write(AGENTS_MAX, &mad), Some(Errno::INVAL));
        assert_eq!(file.enable_p_key(), Err(Errno::INVAL), "after an agent");
        assert_eq!(file.remove(0), Ok(()));
        assert_eq!(file.remove(0), Err(Errno::INVAL));
    }

    #[test]
    fn a_file_without_the_p_key_index_has_the_old_header() {
        let mut file = Agents::new();
        let (class, version, methods, has_rmpp) = (3, 2, 2, false);
        file.insert(0, 5, &AgentRequest { class, version, oui: [0; 3], methods, has_rmpp });
        let (request, grh) = (query(Method::GET, 1).emit(), None);
        let (lid, qpn, sl, path_bits, p_key_index) = (Lid(7), Qpn(1), 0, 0, 3);
        let mad = AgentMad { agent: 5, lid, qpn, sl, path_bits, p_key_index, grh, mad: request };
        file.handle(Time::START, &mad);
        let mut buffer = [0; 500];
        assert_eq!(file.read(&mut buffer), Ok(OLD_HEADER_BYTES + MAD_LEN));
        assert_eq!(buffer[OLD_HEADER_BYTES..][..MAD_LEN], request);
        assert_eq!(file.write(Time::START, &buffer[..OLD_HEADER_BYTES + MAD_LEN]), Ok(()));
    }
}
