//! Forwarding with the kernel as the model: the same packets, good and bad, pass a node and the
//! kernel's forwarding. Each has the same fate at both, to the byte, or the difference is in the
//! table of [`differences`], with its reason.

mod differences;
mod packets;
mod routers;
mod seen;

use differences::DIFFERENCES;
use packets::{Case, cases};
use routers::Router;
use seen::{PacketFate, Seen, number, seen};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

const SEED: u64 = 18;
const PACKETS: u32 = 10_000;
/// Packets between two looks. All of them may cause an error, which a node has in one burst.
const BATCH: usize = 40;
/// By then, a node may send as many errors again.
const PAUSE: Duration = Duration::from_millis(60);

/// The fate of each packet, by its number.
fn fates(router: &mut Router, batch: &[Case]) -> BTreeMap<u32, PacketFate> {
    let mut fates: BTreeMap<_, _> =
        batch.iter().map(|case| (case.id, PacketFate(Vec::new()))).collect();
    for (link, bytes) in router.forward(batch.iter().map(|case| &case.bytes[..])) {
        let id = number(&bytes).expect("a number");
        match fates.get_mut(&id) {
            Some(PacketFate(fate)) => fate.push(seen(link, &bytes)),
            // Packets of a router itself, such as reports of its groups.
            None if id == 0 => {}
            None => panic!("{id}, {bytes:02x?} comes of no packet"),
        }
    }
    fates
}

fn is_sound(fate: &PacketFate) -> bool {
    fate.0.iter().all(|one| !matches!(one, Seen::Error(error) if !error.is_sum_right))
}

#[test]
#[expect(clippy::disallowed_methods, reason = "rate limits go by the clock")]
fn packets_have_the_fate_that_the_kernel_gives_them() {
    let test = "forwarding";
    let (Some(mut kernel), Some(mut node)) = (Router::kernel(test), Router::node(test)) else {
        return;
    };
    let mut met = vec![0; DIFFERENCES.len()];
    let mut unknown = BTreeMap::<String, (u32, String)>::new();
    let (mut same, mut kinds) = (0, BTreeMap::<String, u32>::new());
    for batch in cases(SEED, PACKETS).chunks(BATCH) {
        let expected = fates(&mut kernel, batch);
        sleep(PAUSE);
        let found = fates(&mut node, batch);
        for case in batch {
            let (theirs, ours) = (&expected[&case.id], &found[&case.id]);
            assert!(is_sound(theirs) && is_sound(ours), "checksums: {case:?}: {ours:?}");
            *kinds.entry(theirs.to_string()).or_default() += 1;
            if theirs == ours {
                same += 1;
                continue;
            }
            let (by_kernel, by_us) = (theirs.to_string(), ours.to_string());
            let what = theirs.difference(ours);
            let row = DIFFERENCES.iter().position(|row| row.is_met(case, &by_kernel, &by_us, what));
            match row {
                Some(at) => met[at] += 1,
                None => {
                    let key = format!("{:?}: {by_kernel} / {by_us} ({what})", case.twists);
                    let full = format!("{case:02x?}\nkernel {theirs:02x?}\nnode {ours:02x?}");
                    unknown.entry(key).or_insert((0, full)).0 += 1;
                }
            }
        }
    }
    println!("{same} of {PACKETS} have the same fate; by the kernel: {kinds:#?}");
    for (row, times) in DIFFERENCES.iter().zip(&met) {
        println!("{times:5} {row:?}");
    }
    for (key, (times, full)) in &unknown {
        println!("{times:5} {key}\n{full}\n");
    }
    assert!(unknown.is_empty(), "{} kinds of differences are not in the table", unknown.len());
    let dead = DIFFERENCES.iter().zip(&met).filter(|(_, times)| **times == 0);
    let dead: Vec<_> = dead.map(|(row, _)| row).collect();
    assert!(dead.is_empty(), "these differences are gone: {dead:#?}");
}
