//! Tests of the transport at a port in memory that imitates the kernel: it numbers agents, and
//! refuses a second agent for a class.

use super::*;
use pollux_fabric::null::NullDevice;
use pollux_verbs::GlobalRoute;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::{CmMessage, Rtu};
use pollux_wire::mad::rmpp::{RmppHeader, RmppType};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::units::TimeCode;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

const PORT: u8 = 1;
const INVALID: i32 = Errno::INVAL.raw_os_error();

/// The state of the kernel about a port.
#[derive(Default)]
struct Kernel {
    /// Methods of classes that other agents have.
    taken: Vec<(MgmtClass, Method)>,
    has_user_rmpp: bool,
    registered: Vec<(MgmtClass, Segments, Vec<Method>)>,
    sent: Vec<(Agent, MadPeer, Vec<u8>, Option<UmadRetryPolicy>)>,
    received: VecDeque<(Agent, MadPeer, bool, Vec<u8>)>,
    is_gone: bool,
}

struct Management {
    kernel: Arc<Mutex<Kernel>>,
    current: Vec<u8>,
}

fn refused(errno: i32) -> VerbsError {
    VerbsError::System { verb: "test", errno, advice: "free the class".into() }
}

impl ManagementPort for Management {
    fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError> {
        let Registration { class, segments, methods, .. } = *registration;
        let mut kernel = self.kernel.lock().unwrap();
        let is_taken = methods.iter().any(|method| kernel.taken.contains(&(class, *method)));
        if is_taken || segments == Segments::Caller && !kernel.has_user_rmpp {
            return Err(refused(INVALID));
        }
        kernel.registered.push((class, segments, methods.to_vec()));
        Ok(Agent(kernel.registered.len() as u32 - 1))
    }

    fn send(
        &mut self,
        agent: Agent,
        to: &MadPeer,
        datagram: &[u8],
        retry_policy: Option<UmadRetryPolicy>,
    ) -> Result<(), VerbsError> {
        let mut kernel = self.kernel.lock().unwrap();
        kernel.sent.push((agent, *to, datagram.to_vec(), retry_policy));
        Ok(())
    }

    fn receive(&mut self, _: Duration) -> Result<Option<ReceivedMad<'_>>, VerbsError> {
        let mut kernel = self.kernel.lock().unwrap();
        if kernel.is_gone {
            return Err(refused(Errno::IO.raw_os_error()));
        }
        let Some((agent, peer, is_answered, datagram)) = kernel.received.pop_front() else {
            return Ok(None);
        };
        self.current = datagram;
        Ok(Some(ReceivedMad { agent, peer, is_answered, datagram: &self.current }))
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

/// A transport, and the kernel below it.
struct Bench {
    kernel: Arc<Mutex<Kernel>>,
    umad: Umad,
    device: NullDevice,
}

impl Bench {
    fn new(kernel: Kernel) -> Self {
        let kernel = Arc::new(Mutex::new(kernel));
        let management = Management { kernel: Arc::clone(&kernel), current: Vec::new() };
        let umad = Umad::new(Box::new(management), false).expect("the SA class is free");
        Self { kernel, umad, device: NullDevice::new() }
    }

    /// Sends a MAD, and returns what the kernel got: agent, destination, MAD and retry policy.
    fn send(
        &mut self,
        peer: MadAddress,
        mad: Mad,
    ) -> (Agent, MadPeer, Mad, Option<UmadRetryPolicy>) {
        self.umad.send(&self.device, PORT, &Envelope { peer, mad });
        let sent = self.kernel.lock().unwrap().sent.pop().expect("it is sent");
        (sent.0, sent.1, sent.2.try_into().expect("a MAD"), sent.3)
    }

    fn receive(&mut self, received: (Agent, MadPeer, bool, &[u8])) -> Option<Envelope> {
        let (agent, peer, is_answered, mad) = received;
        self.kernel.lock().unwrap().received.push_back((agent, peer, is_answered, mad.to_vec()));
        let mut envelopes = Vec::new();
        let busy = self.umad.poll(&self.device, PORT, &mut envelopes);
        assert_eq!(busy, Ok(true));
        envelopes.pop()
    }

    fn registered(&self) -> Vec<(MgmtClass, Segments, Vec<Method>)> {
        self.kernel.lock().unwrap().registered.clone()
    }
}

fn subnet_manager() -> MadAddress {
    MadAddress::gsi(Lid(9), 2, PKey::DEFAULT)
}

fn request(transaction_id: u64) -> Mad {
    SaMad::new(Method::GET, transaction_id, Default::default(), PathRecord::default()).emit()
}

fn id(mad: &Mad) -> u64 {
    MadHeader::read(mad).expect("a header").0.transaction_id
}

fn with_id(mut mad: Mad, transaction_id: u64) -> Mad {
    mad[8..16].copy_from_slice(&transaction_id.to_be_bytes());
    mad
}

fn response(to: &Mad) -> Mad {
    let mut mad = SaMad::parse(to);
    mad.header.method = mad.header.method.response();
    // The kernel's number of the agent is in the upper half.
    with_id(mad.emit(), 0x0123_0000_0000 << 8 | id(to))
}

#[test]
fn a_response_has_the_64_bit_transaction_id_of_its_request() {
    let mut bench = Bench::new(Kernel { has_user_rmpp: true, ..Kernel::default() });
    let transaction_id = 0x0000_0002_89ab_cdef;
    let (agent, to, sent, waits) = bench.send(subnet_manager(), request(transaction_id));
    assert_eq!((id(&sent), to.lid, to.sl), (0x89ab_cdef, Lid(9), 2), "the kernel has the rest");
    assert_eq!(waits, Some(RESPONSE_TIME), "the kernel drops a response that no request waits for");
    let answer = bench.receive((agent, to, true, &response(&sent))).expect("it is ours");
    assert_eq!((id(&answer.mad), answer.peer), (transaction_id, subnet_manager()));
    let again = bench.receive((agent, to, true, &response(&sent))).expect("control counts it");
    assert_eq!(id(&again.mad), 0x89ab_cdef, "of no interface: it was answered");
    assert_eq!(bench.umad.drops.malformed, 0);
}

#[test]
fn a_repetition_is_another_request_to_the_kernel_and_the_same_to_control() {
    let mut bench = Bench::new(Kernel { has_user_rmpp: true, ..Kernel::default() });
    let transaction_id = 0x0000_0001_0000_0007;
    let sent: Vec<_> =
        (0..3).map(|_| bench.send(subnet_manager(), request(transaction_id))).collect();
    let low: std::collections::BTreeSet<_> = sent.iter().map(|(_, _, mad, _)| id(mad)).collect();
    assert_eq!(low.len(), 3, "the kernel refuses a number that waits");
    // The second attempt is answered, the first comes back unanswered.
    let (agent, to, mad, _) = &sent[1];
    let answer = bench.receive((*agent, *to, true, &response(mad))).expect("it is ours");
    assert_eq!(id(&answer.mad), transaction_id);
    assert_eq!(bench.receive((*agent, *to, false, &sent[0].2[..MadHeader::LEN])), None);
    let (_, _, again, _) = bench.send(subnet_manager(), request(transaction_id));
    assert_eq!(id(&again), 7, "its number is free again");
}

#[test]
fn requests_are_forgotten_at_the_limit_the_oldest_first() {
    let mut sent = Sent::default();
    let low: Vec<_> = (0..=SENT_MAX as u64).map(|nth| sent.add(1 << 32 | nth)).collect();
    assert_eq!(sent.requests.len(), SENT_MAX);
    assert_eq!(sent.remove(low[0]), None);
    assert_eq!(sent.remove(low[1]), Some(1 << 32 | 1));
}

#[test]
fn the_acks_of_a_transfer_have_the_number_of_its_segments() {
    let mut bench = Bench::new(Kernel { has_user_rmpp: true, ..Kernel::default() });
    let transaction_id = 0x0000_0003_0000_0001;
    let table =
        SaMad::new(Method::GET_TABLE, transaction_id, Default::default(), PathRecord::default());
    bench.send(subnet_manager(), table.emit());
    let (agent, to, second, _) = bench.send(subnet_manager(), table.emit());
    let mut segment = SaMad::parse(&response(&second));
    segment.rmpp.active = true;
    segment.rmpp.rmpp_type = RmppType::DATA;
    for _ in 0..2 {
        let received = bench.receive((agent, to, true, &segment.emit())).expect("each segment");
        assert_eq!(id(&received.mad), transaction_id);
        let rmpp = RmppHeader::ack(1, 1, TimeCode(0));
        let header = MadHeader { method: Method::GET_TABLE, ..SaMad::parse(&received.mad).header };
        let ack = SaMad { header, rmpp, ..segment };
        let (_, _, ack, waits) = bench.send(subnet_manager(), ack.emit());
        assert_eq!((id(&ack) as u32, waits), (id(&second) as u32, None));
    }
}

#[test]
fn a_grh_and_a_partition_are_kept_in_both_directions() {
    let mut bench = Bench::new(Kernel::default());
    bench.umad.accept_connections().expect("the CM class is free");
    let local_gid = bench.device_gid();
    let global = GlobalAddress {
        remote_gid: Gid::new(0xfec0_0000_0000_0001, Guid(7)),
        local_gid,
        flow_label: 0x0a_bcde,
        hop_limit: 63,
        traffic_class: 4,
    };
    let peer = MadAddress { global: Some(global), path_bits: 1, ..subnet_manager() };
    let mad = CmMessage::Rtu(Rtu::default()).emit_mad(0x5_0000_0009);
    let (agent, to, sent, waits) = bench.send(peer, mad);
    assert_eq!((sent, waits), (mad, None), "the kernel waits for no CM message");
    let expected = GlobalRoute {
        dgid: global.remote_gid,
        sgid_index: 0,
        flow_label: 0x0a_bcde,
        hop_limit: 63,
        traffic_class: 4,
    };
    assert_eq!((to.grh, to.pkey_index, to.path_bits, to.qpn), (Some(expected), 0, 1, Qpn::GSI));
    let received = bench.receive((agent, to, true, &mad)).expect("a message of the peer");
    assert_eq!(received, Envelope { peer, mad }, "its transaction ID is the peer's");
    let elsewhere = MadPeer { pkey_index: 0xffff, ..to };
    assert_eq!(bench.receive((agent, elsewhere, true, &mad)), None, "of no partition");
}

impl Bench {
    fn device_gid(&self) -> Gid {
        self.device.gid(PORT, 0).expect("it has one")
    }
}

#[test]
fn datagrams_of_a_wrong_length_are_counted_as_malformed() {
    let mut bench = Bench::new(Kernel::default());
    let peer = MadPeer { lid: Lid(3), qpn: Qpn::GSI, ..MadPeer::default() };
    let agent = Agent(0);
    for length in [0, 1, MadHeader::LEN - 1, MAD_LEN + 1] {
        assert_eq!(bench.receive((agent, peer, true, &vec![3; length])), None, "{length}");
    }
    let notice = SaMad::new(Method::REPORT, 77, Default::default(), PathRecord::default()).emit();
    assert!(bench.receive((agent, peer, true, &notice[..MAD_LEN - 100])).is_some(), "zeros");
    assert_eq!(bench.umad.drops.malformed, 4);
}

#[test]
fn a_port_that_the_kernel_shares_leaves_no_group() {
    let mut bench = Bench::new(Kernel::default());
    let leave =
        SaMad::new(Method::DELETE, 0x2_0000_0007, Default::default(), McMemberRecord::default());
    let leave = Envelope { peer: subnet_manager(), mad: leave.emit() };
    bench.umad.send(&bench.device, PORT, &leave);
    let sent = |bench: &Bench| bench.kernel.lock().unwrap().sent.len();
    assert_eq!(sent(&bench), 1, "no other agent is in our groups");
    bench.umad.shares_groups = true;
    bench.umad.send(&bench.device, PORT, &leave);
    let mut answers = Vec::new();
    assert_eq!(bench.umad.poll(&bench.device, PORT, &mut answers), Ok(true));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let header = SaMad::parse(&answer.mad).header;
    assert_eq!((header.method, header.transaction_id), (Method(0x95), 0x2_0000_0007));
    assert_eq!((sent(&bench), bench.umad.answers.len()), (1, 0));
    let join = SaMad::new(Method::SET, 7, Default::default(), McMemberRecord::default()).emit();
    bench.umad.send(&bench.device, PORT, &Envelope { mad: join, ..leave });
    assert_eq!(sent(&bench), 2, "it joins");
}

#[test]
fn agents_take_what_others_leave() {
    let report = (MgmtClass::SUBN_ADM, Method::REPORT);
    let sa = |segments, methods: &[Method]| vec![(MgmtClass::SUBN_ADM, segments, methods.to_vec())];
    for (has_user_rmpp, taken, expected) in [
        (true, vec![], sa(Segments::Caller, &[Method::REPORT])),
        (false, vec![], sa(Segments::None, &[Method::REPORT])),
        (true, vec![report], sa(Segments::Caller, &[])),
        (false, vec![report], sa(Segments::None, &[])),
    ] {
        let bench = Bench::new(Kernel { taken, has_user_rmpp, ..Kernel::default() });
        assert_eq!(bench.registered(), expected);
    }
}

#[test]
fn connections_wait_until_the_cm_class_is_free() {
    let connections = (MgmtClass::COMM_MGT, Method::SEND);
    let mut bench = Bench::new(Kernel { taken: vec![connections], ..Kernel::default() });
    let refusal = bench.umad.accept_connections().expect_err("it is taken").to_string();
    assert!(refusal.ends_with("free the class"), "{refusal}");
    let mad = CmMessage::Rtu(Rtu::default()).emit_mad(1);
    bench.umad.send(&bench.device, PORT, &Envelope { peer: subnet_manager(), mad });
    assert_eq!(bench.umad.drops.unsent, 1);
    bench.kernel.lock().unwrap().taken.clear();
    bench.umad.accept_connections().expect("it is free");
    bench.umad.accept_connections().expect("it has it");
    let expected = (MgmtClass::COMM_MGT, Segments::None, vec![Method::SEND]);
    assert_eq!(bench.registered()[1..], [expected]);
}

#[test]
fn a_removed_port_fails_the_transport() {
    let mut bench = Bench::new(Kernel::default());
    assert_eq!(bench.umad.poll(&bench.device, PORT, &mut Vec::new()), Ok(false));
    bench.kernel.lock().unwrap().is_gone = true;
    let error = bench.umad.poll(&bench.device, PORT, &mut Vec::new());
    assert!(matches!(error, Err(VerbsError::System { errno: 5, .. })), "{error:?}");
}
