//! Two adapters exchange their first messages: the test to read first.

use crate::pair::{Connection, Pair};
use pollux_fabric::link::Wire;
use pollux_verbs::*;

#[test]
fn a_message_of_many_packets_is_read_back() {
    for packets_only in [false, true] {
        let wire = Wire { packets_only, ..Wire::default() };
        let mut pair = Pair::new(1, wire, &Connection::default());
        let sent: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
        assert!(pair.sides[0].memory.write(3, &sent));

        let [a, b] = &mut pair.sides;
        let recv = [b.sge(100, 30_000)];
        b.device.post_recv(b.qp, &[RecvRequest { id: 7, sges: &recv }]).unwrap();
        let send = [a.sge(3, 30_000)];
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&send));
        let request = SendRequest { id: 8, op: SendOp::SendImm(0xabcd), flags, data };
        a.device.post_send(a.qp, &[request]).unwrap();

        let came = pair.wait(1);
        assert_eq!((came.id, came.status, came.bytes), (7, CompletionStatus::Success, 30_000));
        assert_eq!(came.with, With::Imm(0xabcd));
        let done = pair.wait(0);
        assert_eq!((done.id, done.status), (8, CompletionStatus::Success));
        let mut received = vec![0; 30_000];
        assert!(pair.sides[1].memory.read(100, &mut received));
        assert_eq!(received, sent);

        let [a, b] = &mut pair.sides;
        let answer = [a.sge(32_001, 30_000)];
        let (op, data) = (SendOp::Read(b.remote(100)), Data::Sges(&answer));
        a.device.post_send(a.qp, &[SendRequest { id: 9, op, flags, data }]).unwrap();
        let done = pair.wait(0);
        assert_eq!((done.id, done.status), (9, CompletionStatus::Success));
        assert!(pair.sides[0].memory.read(32_001, &mut received));
        assert_eq!(received, sent);
    }
}
