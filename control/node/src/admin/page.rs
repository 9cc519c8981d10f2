//! Long responses in pages. The control thread makes a page when the client has read the page
//! before, so that neither a long table nor a slow client takes much of its time or memory.
//!
//! Clients see one line of JSON. Rows that are added or removed between two pages may be missing in
//! it. No row occurs twice, since each page begins after the last row of the page before.

use super::reply::{AdminAnswer, AdminReply};
use std::net::IpAddr;

/// A page ends once it has this many rows. Its last interface may exceed the limit by as many
/// again.
pub const PAGE_ROWS: usize = 256;

/// The beginning and the end of a response with rows.
const BEGIN: &[u8] = b"{\"ok\":[";
const END: &[u8] = b"]}";

#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub reply: AdminReply<AdminAnswer>,
    pub next: Option<Cursor>,
}

/// The position where a page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The interface whose rows continue; empty for rows of the node.
    pub interface: String,
    /// The last row of the page before, if that row belongs to this interface.
    pub after: Option<RowKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    Neighbor(IpAddr),
    Connection(u64),
    /// The number of a routing domain, the prefix of a route there, and its length.
    Route(u16, IpAddr, u8),
}

/// The rows after `after`, at most [`PAGE_ROWS`], and the key of the last one, if there may be
/// more. `rows` has to be in the order of the keys.
pub fn rows_after<R>(
    rows: impl Iterator<Item = R>,
    key: impl Fn(&R) -> RowKey,
    after: Option<RowKey>,
) -> (Vec<R>, Option<RowKey>) {
    let rows = rows.skip_while(|row| after.is_some_and(|after| key(row) <= after));
    let rows: Vec<_> = rows.take(PAGE_ROWS).collect();
    let last = rows.last().filter(|_| rows.len() == PAGE_ROWS).map(key);
    (rows, last)
}

impl From<AdminReply<AdminAnswer>> for Page {
    fn from(reply: AdminReply<AdminAnswer>) -> Self {
        Self { reply, next: None }
    }
}

impl Page {
    /// The part of the response that this page is. The last page has the end of the line, too.
    pub(super) fn bytes(&self, is_first: bool) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(&self.reply).expect("it has no keys but strings");
        if !is_first {
            // After the first page, an error can only end the list of rows.
            let rows = bytes.strip_prefix(BEGIN).unwrap_or(END);
            let comma: &[u8] = if rows == END { b"" } else { b"," };
            bytes = [comma, rows].concat();
        }
        match self.next {
            Some(_) => bytes.truncate(bytes.len() - END.len()),
            None => bytes.push(b'\n'),
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::rows::FaultStatus;

    fn page(numbers: &[u32], is_last: bool) -> Page {
        let rows = numbers.iter().map(|&number| FaultStatus { number, rule: "down".into() });
        let reply = AdminReply::Ok(AdminAnswer::Faults(rows.collect()));
        Page { reply, next: (!is_last).then(Cursor::default) }
    }

    #[test]
    fn rows_of_pages_are_all_rows_once() {
        for count in [0, 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS] {
            let (mut all, mut after) = (Vec::new(), None);
            loop {
                let rows = (0..count as u64).map(|key| 3 * key);
                let (rows, last) = rows_after(rows, |row| RowKey::Connection(*row), after);
                assert!(rows.len() <= PAGE_ROWS);
                all.extend(rows);
                // The last row may be removed before the next page is made.
                after = last.map(|key| match key {
                    RowKey::Connection(key) => RowKey::Connection(key + 1),
                    other => other,
                });
                if after.is_none() {
                    break;
                }
            }
            assert!(all.into_iter().eq((0..count as u64).map(|key| 3 * key)), "{count}");
        }
    }

    #[test]
    fn pages_make_one_line() {
        let line = page(&[1, 2, 3], true).bytes(true);
        assert!(line.ends_with(b"]}\n"));
        let parts: [&[Page]; 3] = [
            &[page(&[1], false), page(&[2, 3], true)],
            &[page(&[1, 2, 3], false), page(&[], true)],
            &[page(&[1, 2], false), page(&[], false), page(&[3], true)],
        ];
        for parts in parts {
            let bytes = parts.iter().enumerate().map(|(nth, page)| page.bytes(nth == 0));
            assert_eq!(bytes.collect::<Vec<_>>().concat(), line);
        }
        let gone = Page::from(AdminReply::Error("there is no interface".into()));
        let bytes = [page(&[1], false).bytes(true), gone.bytes(false)].concat();
        assert_eq!(bytes, page(&[1], true).bytes(true));
    }
}
