//! The options of the layer `verbs`: the operation, and how it uses queue pairs.

use crate::error::PerfError;
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Requests that one call can post, at most.
pub const POST_LIST_MAX: usize = 32;
const QPS_MAX: u16 = 4096;
const DEPTH_MAX: u16 = 8192;
/// The largest default depth of a queue pair.
const DEPTH: u32 = 256;
/// The bytes in flight on all queue pairs together, by default, if the depth is at least 2. More
/// would not stay in the caches.
const BYTES_UNDER_WAY: u32 = 1 << 20;
/// Messages of this length or longer are posted in shorter lists by default.
const LONG_BYTES: u32 = 4096;
const LONG_LIST: u32 = 4;

/// What a message between queue pairs is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum VerbsOp {
    /// A send, into a receive of the other end.
    #[default]
    Send,
    /// An RDMA write into the memory of the other end.
    Write,
    /// An RDMA read of the memory of the other end.
    Read,
    /// An atomic fetch-and-add on eight bytes of the other end.
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerbsPlan {
    pub op: VerbsOp,
    /// Whether both ends send; only for bw and rate of the operation Send.
    pub bidirectional: bool,
    /// Queue pairs of each end, which messages use in turn.
    #[serde(default = "one")]
    pub qps: u16,
    /// Messages in flight on each queue pair, with bw and rate; by default, as many as stay in the
    /// caches, but 2 to 256.
    #[serde(default)]
    pub depth: Option<u16>,
    /// Messages that one call posts, with bw and rate.
    #[serde(default)]
    pub post_list: Option<u16>,
    /// Messages for each completion of a sender, with bw and rate; by default, the same as
    /// `post_list`.
    #[serde(default)]
    pub completion_every: Option<u16>,
    /// Messages up to this length are sent inline; by default 64 bytes with lat, otherwise 0.
    #[serde(default)]
    pub inline_bytes: Option<u16>,
    /// Whether ends sleep until a completion, instead of polling.
    #[serde(default)]
    pub events: bool,
}

const fn one() -> u16 {
    1
}

impl VerbsPlan {
    /// Sends on one queue pair.
    pub const SENDS: Self = Self {
        op: VerbsOp::Send,
        bidirectional: false,
        qps: 1,
        depth: None,
        post_list: None,
        completion_every: None,
        inline_bytes: None,
        events: false,
    };

    /// Messages in flight on each queue pair, at most.
    pub fn depth(&self, bytes: u32) -> u32 {
        let in_caches = BYTES_UNDER_WAY / bytes.next_multiple_of(64) / u32::from(self.qps);
        self.depth.map_or(in_caches.clamp(2, DEPTH), u32::from)
    }

    /// Messages that one call posts.
    pub fn post_list(&self, bytes: u32) -> u32 {
        let most = if bytes < LONG_BYTES { POST_LIST_MAX as u32 } else { LONG_LIST };
        let chosen = most.min(self.depth(bytes) / 2).max(1);
        self.post_list.map_or(chosen, u32::from)
    }

    /// Messages for each completion.
    pub fn completion_every(&self, bytes: u32) -> u32 {
        self.completion_every.map_or(self.post_list(bytes), u32::from)
    }

    /// Refuses invalid options. The error says what is valid instead.
    pub fn check(&self, bytes: u32, is_stream: bool) -> Result<(), PerfError> {
        let refuse = |why: &str| Err(PerfError::Plan(why.into()));
        let ours = [self.depth, self.post_list, self.completion_every];
        if !is_stream && ours.iter().any(Option::is_some) {
            return refuse("--tx-depth, --post-list and --cq-mod are for bw and rate");
        }
        if !(1..=QPS_MAX).contains(&self.qps) {
            return refuse("--qp has to be 1 to 4096");
        }
        if ours.iter().flatten().any(|count| !(1..=DEPTH_MAX).contains(count)) {
            return refuse("--tx-depth, --post-list and --cq-mod have to be 1 to 8192");
        }
        if self.post_list(bytes) > POST_LIST_MAX as u32 {
            return refuse("--post-list is at most 32");
        }
        let [depth, list, every] =
            [self.depth(bytes), self.post_list(bytes), self.completion_every(bytes)];
        if depth + 1 < list + every {
            let why = format!(
                "with {depth} messages under way, a sender that posts {list} at a time and gets a \
                 completion for {every} would wait for ever: write a larger --tx-depth, or \
                 smaller --post-list and --cq-mod"
            );
            return refuse(&why);
        }
        match self.events && self.op != VerbsOp::Send {
            true => refuse("--events is for sends, which complete at both ends"),
            false => Ok(()),
        }
    }
}

/// Prints the options that differ from the default, except the operation.
impl fmt::Display for VerbsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bidirectional {
            write!(f, ", both ways")?;
        }
        if self.qps > 1 {
            write!(f, ", {} queue pairs", self.qps)?;
        }
        for (name, value) in [
            ("depth", self.depth),
            ("list", self.post_list),
            ("completion every", self.completion_every),
            ("inline up to", self.inline_bytes),
        ] {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        f.write_str(if self.events { ", by events" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(plan: VerbsPlan, bytes: u32) -> String {
        plan.check(bytes, true).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_is_not_said_stays_in_caches_and_never_waits_for_itself() {
        for qps in [1, 7, 256, 4096] {
            for bytes in [1, 64, 4095, 4096, 65_536, 1 << 20, 8 << 20] {
                for depth in [None, Some(1), Some(2), Some(3), Some(1000)] {
                    let plan = VerbsPlan { qps, depth, ..VerbsPlan::SENDS };
                    assert_eq!(refusal(plan, bytes), "", "{plan:?} of {bytes}");
                }
                let depth = VerbsPlan { qps, ..VerbsPlan::SENDS }.depth(bytes);
                let under_way = u64::from(depth) * u64::from(bytes) * u64::from(qps);
                assert!(depth == 2 || under_way <= 1 << 20, "{qps} of {bytes}: {depth}");
            }
        }
    }

    #[test]
    fn a_sender_that_would_wait_for_ever_is_refused() {
        let plan = |depth, list, every| VerbsPlan {
            depth: Some(depth),
            post_list: Some(list),
            completion_every: Some(every),
            ..VerbsPlan::SENDS
        };
        assert_eq!(refusal(plan(16, 8, 9), 64), "");
        assert!(refusal(plan(16, 8, 10), 64).contains("larger --tx-depth"));
        assert!(refusal(plan(100, 33, 1), 64).contains("at most 32"));
        assert!(refusal(plan(0, 1, 1), 64).contains("1 to 8192"));
        assert!(plan(16, 8, 9).check(64, false).is_err());
    }
}
