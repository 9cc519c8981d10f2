//! Regions that are part of a memory, and regions that are registered anew.

use crate::pair::{Connection, Side, connect, side};
use crate::pair_world::{World, WorldLink};
use pollux_fabric::link::Wire;
use pollux_hca::{MemoryRange, RegionChange};
use pollux_verbs::*;

/// Longer than what a message carries itself.
const BYTES: usize = 4096;
const RANGE: MemoryRange = MemoryRange { at: 0, bytes: BYTES as u64, address: 0x1000 };

/// A side that is connected to itself.
fn looped() -> (World, Side<WorldLink>) {
    let connection = Connection::default();
    let (world, [link, _]) = World::new(1, Wire::default());
    let mut side = side(link, 1, &connection);
    let qpn = side.device.qpn(side.qp).unwrap();
    connect(&mut side, qpn, 1, &connection);
    (world, side)
}

/// Writes from the range to behind it; returns the status.
fn write(world: &World, side: &mut Side<WorldLink>, region: LKey) -> CompletionStatus {
    let sges = [Sge { address: RANGE.address, bytes: BYTES as u32, lkey: region }];
    let (op, flags) = (SendOp::Write(side.remote(BYTES as u64)), SendFlags::SIGNALED);
    let request = SendRequest { id: 1, op, flags, data: Data::Sges(&sges) };
    side.device.post_send(side.qp, &[request]).unwrap();
    loop {
        side.device.progress();
        if let Some(completion) = side.poll() {
            return completion.status;
        }
        assert!(world.step(), "nothing will ever happen");
    }
}

fn register(side: &mut Side<WorldLink>) -> LKey {
    let (pd, memory) = (side.pd, side.memory.clone());
    side.device.adapter.register_range(pd, &memory, RANGE, Access::ALL).unwrap().lkey
}

#[test]
fn part_of_a_memory_passes_between_queue_pairs_of_one_adapter() {
    let (world, mut side) = looped();
    let region = register(&mut side);
    assert!(side.memory.write(0, &[0x5e; BYTES]));
    assert_eq!(write(&world, &mut side, region), CompletionStatus::Success);
    let mut bytes = [0; BYTES];
    assert!(side.memory.read(BYTES, &mut bytes));
    assert_eq!(bytes, [0x5e; BYTES]);
}

#[test]
fn a_region_that_is_registered_anew_keeps_its_keys() {
    let (world, mut side) = looped();
    let region = register(&mut side);
    let (pd, memory) = (side.device.create_pd().unwrap(), side.memory.clone());
    assert!(memory.write(2 * BYTES, &[0x5e; BYTES]));
    let change = |side: &mut Side<WorldLink>, change| {
        side.device.adapter.reregister(region, change).unwrap();
    };
    let range = MemoryRange { at: 2 * BYTES, ..RANGE };
    change(&mut side, RegionChange { memory: Some((&memory, range)), ..RegionChange::default() });
    assert_eq!(write(&world, &mut side, region), CompletionStatus::Success);
    let mut bytes = [0; BYTES];
    assert!(memory.read(BYTES, &mut bytes));
    assert_eq!(bytes, [0x5e; BYTES]);

    change(&mut side, RegionChange { pd: Some(pd), ..RegionChange::default() });
    assert_eq!(write(&world, &mut side, region), CompletionStatus::LocalProtection);
    let nowhere = RegionChange { pd: Some(Pd(u32::MAX)), ..RegionChange::default() };
    assert!(side.device.adapter.reregister(region, nowhere).is_err());
}

#[test]
fn a_region_with_a_window_is_not_registered_anew() {
    let (world, mut side) = looped();
    let region = register(&mut side);
    let window = side.device.create_window(side.pd).unwrap().rkey;
    let (address, bytes, access) = (RANGE.address, RANGE.bytes, Access::REMOTE_READ);
    let bind = work::Bind { window, rkey: RKey(window.0 + 1), region, address, bytes, access };
    let (op, flags, data) = (SendOp::Bind(bind), SendFlags::SIGNALED, Data::EMPTY);
    side.device.post_send(side.qp, &[SendRequest { id: 1, op, flags, data }]).unwrap();
    assert_eq!(write(&world, &mut side, region), CompletionStatus::Success);
    let change = RegionChange { access: Some(Access::NONE), ..RegionChange::default() };
    let refused = side.device.adapter.reregister(region, change);
    assert!(matches!(refused, Err(VerbsError::Busy { .. })), "{refused:?}");
}
