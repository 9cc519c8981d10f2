//! The rings between the control thread of a node and its workers, of which either stands still.

use crate::debugger;
use crate::pair::{OTHERS, Pair, SILENCE};
use std::time::Duration;

/// Events in the ring to control, and commands in the ring to a worker.
const RING: usize = 1024;
/// Packets of control that wait for space in the ring to a worker.
const WAITING: usize = 1024;
/// How long a debugger holds a thread.
const STALL: Duration = Duration::from_secs(5);

#[test]
fn what_fits_the_ring_waits_for_a_control_thread_that_stands_still_for_five_seconds() {
    for mode in ["ud", "rc"] {
        let mut pair = Pair::new(&format!("stalled-{mode}"), mode, 1);
        let before = pair.links();
        let count = (RING - OTHERS) as u16;
        let stalled = pair.node.stall();
        let end = pair.peer.now() + STALL;
        pair.send_all(0, count);
        pair.pass(end);
        assert!(pair.answered.is_empty(), "{mode}: nobody answers now");
        drop(stalled);
        pair.until("answered", |pair| pair.answered.len() >= usize::from(count));
        pair.listen(SILENCE);
        assert_eq!(pair.answered, (0..count).collect::<Vec<_>>(), "{mode}: each once, in order");
        assert_eq!(pair.links(), before, "{mode}: nobody was given up");
        assert_eq!(pair.dropped("punts_dropped"), 0, "{mode}");
    }
}

#[test]
fn what_does_not_fit_the_ring_to_control_is_counted() {
    for mode in ["ud", "rc"] {
        let mut pair = Pair::new(&format!("punts-{mode}"), mode, 1);
        let count = 3 * RING;
        let stalled = pair.node.stall();
        pair.send_all(0, count as u16);
        // Its worker has taken them all by then.
        pair.listen(SILENCE);
        drop(stalled);
        pair.account_for(count, "punts_dropped");
        let answered = pair.answered.len();
        assert!((RING - OTHERS..=RING).contains(&answered), "{mode}: {answered}");
        let first: Vec<_> = (0..answered as u16).collect();
        assert_eq!(pair.answered, first, "{mode}: the first have the space");
        // All later packets have space again.
        pair.answered.clear();
        pair.send_all(0, 100);
        pair.until("answered", |pair| pair.answered.len() == 100);
    }
}

#[test]
fn what_does_not_fit_the_ring_to_a_worker_is_counted() {
    let test = "what_does_not_fit_the_ring_to_a_worker_is_counted";
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return println!("SKIP {test}: there are not two cores");
    }
    // All answers leave by worker 0.
    let mut pair = Pair::new("commands", "rc", 2);
    let Some(stopped) = debugger::stop(test, "worker0") else { return };
    let fits = RING + WAITING;
    let count = 2 * fits;
    // Control keeps up with the other worker, so no event to it is lost.
    pair.send_paced(1, count as u16);
    pair.listen(SILENCE);
    assert!(pair.answered.is_empty(), "nobody answers now");
    // The control thread continues.
    let before = pair.dropped("control_no_room");
    assert!((count - fits..=count - fits + OTHERS).contains(&before), "{before}");
    drop(stopped);
    pair.account_for(count, "control_no_room");
    assert_eq!(pair.dropped("punts_dropped"), 0, "the ring to control was never full");
    let first: Vec<_> = (0..pair.answered.len() as u16).collect();
    assert_eq!(pair.answered, first, "the first have the space");
    pair.answered.clear();
    pair.send_all(1, 100);
    pair.until("answered", |pair| pair.answered.len() == 100);
}
