//! VL arbitration: which virtual lane of a port sends next (IBA 7.6.9).
//!
//! The high-priority and the low-priority table are lists of lanes with weights in units of 64
//! bytes. The high table sends first. Once it has sent as many bytes as its limit allows while the
//! low table had packets, the low table sends one packet. Within a table, lanes take turns, each
//! for as many bytes as its weight. VL 15 is in no table; its packets precede all others.

use pollux_wire::mad::smp::{VlArbitrationTable, VlWeight};

/// The value of the high limit for no limit.
const UNLIMITED: u8 = 255;
/// Bytes in a unit of the high limit.
const LIMIT_UNIT: i64 = 4096;
/// Bytes in a unit of a weight.
const WEIGHT_UNIT: i64 = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    low: TableCursor,
    high: TableCursor,
    /// Bytes that the high table may send before the low table gets its packet.
    high_bytes_left: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct TableCursor {
    entry: usize,
    /// Bytes that the entry may send before the next entry is due; 0 before its first packet.
    left: i64,
}

impl Arbiter {
    /// The lane that sends next. `size` returns the length of a lane's first packet. `tables` has
    /// the two halves of the low table and then those of the high table. Without tables, all lanes
    /// have the same weight.
    pub(super) fn choose(
        &mut self,
        tables: Option<&[VlArbitrationTable; 4]>,
        high_limit: u8,
        size: impl Fn(u8) -> Option<u64>,
    ) -> Option<u8> {
        let (low, high) = match tables {
            None => (Table::Even, Table::None),
            Some([low, low_rest, high, high_rest]) => {
                (Table::Halves(low, low_rest), Table::Halves(high, high_rest))
            }
        };
        let (low_has_packet, high_has_packet) = (low.has_packet(&size), high.has_packet(&size));
        if high_has_packet
            && (!low_has_packet || self.high_bytes_left > 0 || high_limit == UNLIMITED)
        {
            let lane = self.high.next(high, &size)?;
            if low_has_packet {
                self.high_bytes_left -= size(lane)? as i64;
            }
            return Some(lane);
        }
        let lane = self.low.next(low, &size)?;
        // With a limit of 0, the high table sends one packet.
        self.high_bytes_left = (i64::from(high_limit) * LIMIT_UNIT).max(1);
        Some(lane)
    }
}

#[derive(Clone, Copy)]
enum Table<'a> {
    None,
    /// All lanes with equal weights.
    Even,
    Halves(&'a VlArbitrationTable, &'a VlArbitrationTable),
}

impl Table<'_> {
    fn entries(self) -> usize {
        match self {
            Self::None => 0,
            Self::Even => 15,
            Self::Halves(first, last) => first.entries.len() + last.entries.len(),
        }
    }

    fn entry(self, nth: usize) -> VlWeight {
        match self {
            Self::None => VlWeight::default(),
            Self::Even => VlWeight { lane: nth as u8, weight: 1 },
            Self::Halves(first, last) => {
                *first.entries.iter().chain(&last.entries).nth(nth).unwrap_or(&VlWeight::default())
            }
        }
    }

    fn has_packet(self, size: impl Fn(u8) -> Option<u64>) -> bool {
        let entries = (0..self.entries()).map(|nth| self.entry(nth));
        entries.into_iter().any(|entry| entry.weight > 0 && size(entry.lane).is_some())
    }
}

impl TableCursor {
    /// The next lane of a table that has something to send.
    fn next(&mut self, table: Table<'_>, size: impl Fn(u8) -> Option<u64>) -> Option<u8> {
        for _ in 0..=table.entries() {
            let entry = table.entry(self.entry);
            if let Some(bytes) = size(entry.lane).filter(|_| entry.weight > 0) {
                if self.left <= 0 {
                    self.left = i64::from(entry.weight) * WEIGHT_UNIT;
                }
                self.left -= bytes as i64;
                if self.left <= 0 {
                    self.advance(table.entries());
                }
                return Some(entry.lane);
            }
            self.advance(table.entries());
        }
        None
    }

    fn advance(&mut self, entries: usize) {
        self.entry = if self.entry + 1 < entries { self.entry + 1 } else { 0 };
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(u8, u8)]) -> VlArbitrationTable {
        let entry = |nth: usize| {
            entries
                .get(nth)
                .map_or(VlWeight::default(), |&(lane, weight)| VlWeight { lane, weight })
        };
        VlArbitrationTable { entries: std::array::from_fn(entry) }
    }

    /// How often each lane sends if the `ready` lanes always have packets of 64 bytes.
    fn shares(low: &[(u8, u8)], high: &[(u8, u8)], limit: u8, ready: &[u8]) -> [u32; 4] {
        let tables = [table(low), table(&[]), table(high), table(&[])];
        let mut arbiter = Arbiter::default();
        let mut shares = [0; 4];
        for _ in 0..6400 {
            let size = |lane| ready.contains(&lane).then_some(64);
            let lane = arbiter.choose(Some(&tables), limit, size).expect("there is one");
            shares[usize::from(lane)] += 1;
        }
        shares
    }

    #[test]
    fn lanes_share_by_their_weights() {
        assert_eq!(shares(&[(0, 1), (1, 3)], &[], 0, &[0, 1]), [1600, 4800, 0, 0]);
        assert_eq!(shares(&[(0, 1), (1, 3)], &[], 0, &[0]), [6400, 0, 0, 0]);
        assert_eq!(shares(&[(0, 2), (1, 1), (0, 1)], &[], 0, &[0, 1]), [4800, 1600, 0, 0]);
    }

    #[test]
    fn high_priority_leaves_low_priority_its_share_by_the_limit() {
        assert_eq!(shares(&[(0, 1)], &[(1, 1)], UNLIMITED, &[0, 1]), [0, 6400, 0, 0]);
        assert_eq!(shares(&[(0, 1)], &[(1, 1)], UNLIMITED, &[0]), [6400, 0, 0, 0]);
        // 64 packets of 64 bytes are a unit of the limit.
        let [low, high, ..] = shares(&[(0, 1)], &[(1, 1)], 1, &[0, 1]);
        assert!((62..=66).contains(&(high / low)), "{high} to {low}");
        let [low, high, ..] = shares(&[(0, 1)], &[(1, 1)], 0, &[0, 1]);
        assert!(low.abs_diff(high) <= 1, "{high} to {low}: one packet each");
    }

    #[test]
    fn without_tables_all_take_turns() {
        let mut arbiter = Arbiter::default();
        let lanes: Vec<u8> = (0..6)
            .filter_map(|_| {
                arbiter.choose(None, 0, |lane| [2, 7, 9].contains(&lane).then_some(500))
            })
            .collect();
        assert_eq!(lanes, [2, 7, 9, 2, 7, 9]);
        assert_eq!(arbiter.choose(None, 0, |_| None), None);
    }

    #[test]
    fn lanes_that_no_table_names_do_not_send() {
        let tables = [table(&[(0, 1)]), table(&[]), table(&[]), table(&[])];
        let size = |lane| (lane == 3).then_some(64);
        assert_eq!(Arbiter::default().choose(Some(&tables), 0, size), None);
    }
}
