//! Warnings for an operator, in sentences.

use super::sample::SampleChange;

/// A worker that is busy for at least this share of its time, in percent, causes a warning.
const BUSY_PERCENT_MAX: f64 = 90.0;

/// The warnings, the most important ones first.
pub fn warnings(change: &SampleChange) -> Vec<String> {
    let states = change.now.interfaces.iter().filter(|row| row.state != "up").map(|row| {
        let waits = row.waits_for.as_ref().map_or(String::new(), |it| format!("; waits for {it}"));
        format!("{} is {}: {}{waits}", row.interface, row.state, row.why)
    });
    let busy = change.now.workers.iter().filter_map(|row| {
        let percent = change.busy_percent(row);
        let advice = "give it more cores or interfaces more workers";
        (percent >= BUSY_PERCENT_MAX)
            .then(|| format!("worker {} is {percent:.0} % busy: {advice}", row.worker))
    });
    let counted = change.now.drops.iter().filter(|row| row.count > 0 && !row.usual);
    let drops = counted.filter_map(|row| {
        let rate = change.drop_rate(row);
        (rate > 0.0).then(|| match row.why.as_str() {
            "no_receive_buffer" => format!(
                "{}: no receive buffer was free {rate:.0} times a second: packets come faster \
                 than its workers take them",
                row.interface
            ),
            why => format!("{} drops {rate:.0} a second: {} {why}", row.interface, row.of),
        })
    });
    states.chain(busy).chain(drops).collect()
}
