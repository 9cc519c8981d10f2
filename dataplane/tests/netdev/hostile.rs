//! Malformed messages: each is a counted drop, and its buffer becomes the next receive.

use crate::pair::*;
use pollux_dataplane::reason::PacketDrop;
use pollux_mem::Memory;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::*;

/// Sends any bytes as messages by a queue pair of host 0, without the netdev.
struct Rogue {
    memory: Memory,
    region: MemoryRegion,
    cq: Cq,
    qp: Qp,
    op: SendOp,
}

impl Rogue {
    fn new(pair: &mut Pair) -> Self {
        let host = &mut pair.hosts[0];
        let pd = host.pd;
        let memory = Memory::private(1 << 17).unwrap();
        let region = host.device.register(pd, &memory, Access::NONE).unwrap();
        let cq = host.device.create_cq(64).unwrap();
        let qp = host.device.create_qp(&qp_init(pd, cq)).unwrap();
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let init = QpAttributes {
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..to(QpState::Init)
        };
        let rts = QpAttributes { sq_psn: Some(Default::default()), ..to(QpState::Rts) };
        for change in [init, to(QpState::Rtr), rts] {
            host.device.modify_qp(qp, &change).unwrap();
        }
        let to = Destination { ah: host.ah, qpn: host.peer.qpn, qkey: QKEY };
        Self { memory, region, cq, qp, op: SendOp::Datagram(to) }
    }

    fn send(&mut self, pair: &mut Pair, bytes: &[u8]) {
        assert!(self.memory.write(0, bytes));
        let MemoryRegion { address, lkey, .. } = self.region;
        let sges = [Sge { address, bytes: bytes.len() as u32, lkey }];
        let data = Data::Sges(if bytes.is_empty() { &[] } else { &sges });
        let request = SendRequest { id: 0, op: self.op, flags: SendFlags::SIGNALED, data };
        let device = &mut pair.hosts[0].device;
        device.post_send(self.qp, &[request]).unwrap();
        pair.step_until_idle();
        let device = &mut pair.hosts[0].device;
        while device.poll(self.cq, &mut [Completion::NOTHING]).unwrap() > 0 {}
    }
}

fn qp_init(pd: Pd, cq: Cq) -> QpInit {
    QpInit {
        qp_type: QpType::Ud,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_requests_max: 16,
        recv_requests_max: 1,
        send_sges_max: 1,
        recv_sges_max: 1,
        inline_bytes_max: 0,
        signal_all: false,
    }
}

/// A message of this type with `bytes` bytes behind the header, which begin as a packet of version
/// `version`.
fn message(ether_type: u16, reserved: u16, version: u8, bytes: usize) -> Vec<u8> {
    let mut message = ether_type.to_be_bytes().to_vec();
    message.extend(reserved.to_be_bytes());
    message.extend(std::iter::repeat_n(version << 4 | 5, bytes));
    message
}

// req: cm-frame-header
#[test]
fn each_malformed_message_is_counted_by_its_reason() {
    let mut pair = Pair::new(1, Setup::default());
    let mut rogue = Rogue::new(&mut pair);
    let (v4, v6) = (packet(4, 60, 1), packet(6, 60, 1));
    let ip = |packet: &[u8], changes: &[(usize, u8)]| {
        let ether_type = if packet[0] >> 4 == 4 { [8, 0, 0, 0] } else { [0x86, 0xdd, 0, 0] };
        let mut message = [&ether_type, packet].concat();
        changes.iter().for_each(|&(at, byte)| message[4 + at] = byte);
        message
    };
    let reserved = [&[8, 0, 0xff, 0xff], &v4[..]].concat();
    for (bytes, why) in [
        (vec![], Some(PacketDrop::Runt)),
        (vec![8, 0, 0], Some(PacketDrop::Runt)),
        (message(0x0800, 0, 4, 0), Some(PacketDrop::Truncated)),
        (message(0x0800, 0, 4, 19), Some(PacketDrop::Truncated)),
        (ip(&v4, &[]), None),
        (ip(&v4[..59], &[]), Some(PacketDrop::BadLength)),
        (ip(&v4, &[(0, 0x44)]), Some(PacketDrop::BadLength)),
        (ip(&v4, &[(0, 0x4f), (2, 0), (3, 59)]), Some(PacketDrop::BadLength)),
        (ip(&v4, &[(3, 59)]), Some(PacketDrop::Checksum)),
        (ip(&v4, &[(8, 63)]), Some(PacketDrop::Checksum)),
        (ip(&[&v4[..], &[0; 9]].concat(), &[]), None),
        (message(0x0800, 0, 6, 20), Some(PacketDrop::Version)),
        (message(0x86dd, 0, 6, 39), Some(PacketDrop::Truncated)),
        (ip(&v6, &[]), None),
        (ip(&v6, &[(5, 21)]), Some(PacketDrop::BadLength)),
        // Only the destination parses extension headers, so a chain without an end is no drop.
        (ip(&v6, &[(6, 0)]), None),
        (message(0x86dd, 0, 4, 40), Some(PacketDrop::Version)),
        (message(0x0806, 0, 0, 7), Some(PacketDrop::Truncated)),
        (message(0x0806, 0, 0, 56), None),
        (message(0x8035, 0, 0, 56), None),
        (message(0x88ca, 0, 0, 60), Some(PacketDrop::EtherType)),
        (message(0, 0, 4, 60), Some(PacketDrop::EtherType)),
        (reserved, None),
    ] {
        let before = pair.hosts[1].netdev.drops().clone();
        rogue.send(&mut pair, &bytes);
        let received = pair.hosts[1].bytes();
        let drops = pair.hosts[1].netdev.drops();
        match why {
            Some(why) => {
                assert_eq!(drops.of(why), before.of(why) + 1, "{bytes:?}");
                assert!(received.is_empty());
            }
            None => assert_eq!(received, [&bytes[4..]], "reserved bytes are ignored"),
        }
        assert_eq!(drops.total() - before.total(), why.iter().count() as u64, "{bytes:?}");
    }
    pair.close();
}

#[test]
fn malformed_messages_on_a_connection_are_dropped_and_it_stays() {
    let mut pair = Pair::new(1, Setup::default());
    let ids = pair.connect(QpType::Rc);
    let mut rogue = Rogue::new(&mut pair);
    // The netdev's own queue pair: completions of the rogue's requests count as strays.
    rogue.qp = pair.hosts[0].netdev.peering(ids[0]).unwrap().qp;
    rogue.op = SendOp::Send;
    for (nth, bytes) in
        [vec![], vec![8, 0, 0], message(0x0800, 0, 4, 3), message(0x1234, 0, 4, 60_000)]
            .into_iter()
            .enumerate()
    {
        rogue.send(&mut pair, &bytes);
        assert_eq!(pair.hosts[1].netdev.drops().total(), nth as u64 + 1);
        assert_eq!(pair.hosts[0].netdev.drops().of(PacketDrop::Stray), nth as u64 + 1);
    }
    let route = pair.hosts[0].connected(ids[0]);
    pair.hosts[0].send(route, [packet(4, 5000, 1)]);
    pair.step_until_idle();
    assert_eq!(pair.hosts[1].bytes(), [packet(4, 5000, 1)]);
    pair.close();
}

/// Random messages; the number of posted receives stays the same.
#[test]
fn any_bytes_are_received_or_counted_as_drops() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed, Setup { small: [300; 2], ..Setup::default() });
        let mut rogue = Rogue::new(&mut pair);
        let mut rng = SeededRng::new(seed);
        let mut received = 0;
        for _ in 0..500 {
            let bytes_max = if rng.happens(500_000) { 64 } else { 2048 };
            let bytes = rng.below(bytes_max) as usize;
            let mut message = random_bytes(rng.next_u64(), bytes);
            let ether_types = [0x0800u16, 0x86dd, 0x0806, 0x8035];
            if bytes >= 5 && rng.happens(800_000) {
                let ether_type = ether_types[rng.below(4) as usize];
                message[..2].copy_from_slice(&ether_type.to_be_bytes());
            }
            rogue.send(&mut pair, &message);
            received += pair.hosts[1].bytes().len() as u64;
        }
        let netdev = &pair.hosts[1].netdev;
        assert_eq!(received + netdev.drops().total(), 500, "seed {seed}");
        assert_eq!(netdev.traffic().datagrams_received, received, "seed {seed}");
        assert_eq!(netdev.traffic().starved, 0, "seed {seed}");
        pair.close();
    }
}
