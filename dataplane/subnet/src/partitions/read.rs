//! The file of partitions, in the syntax of OpenSM's `partitions.conf`:
//!
//! ```text
//! # comment
//! NAME[=KEY] [, FLAG[=VALUE]]... [: [MEMBER[=full|limited|both]] [, ...]] ;
//! ```
//!
//! A partition can take several lines. Groups other than those of IP over InfiniBand (`mgid=`) are
//! not supported.

use super::{IpoibGroups, Members, MembershipKind, PARTITIONS_MAX, Partition, Partitions};
use super::{PartitionError, PartitionProblem as Problem};
use pollux_wire::address::{Guid, Scope};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::smp::NodeType;
use pollux_wire::units::{Mtu, Rate};
use std::collections::BTreeSet;

type Result<T> = std::result::Result<T, PartitionError>;

impl Partitions {
    /// Parses a partition file; `file` is its name in errors.
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let mut reader = Reader { file, line: 1, all: Vec::new() };
        for (line, statement) in statements(text) {
            reader.line = line;
            match statement {
                Ok(words) => reader.partition(words)?,
                Err(word) => return Err(reader.wrong(&word, Problem::Unfinished)),
            }
        }
        reader.finish()
    }
}

/// The number of the line where a part of a partition begins, and the part.
struct Part(usize, String);

/// One partition: its parts, each with the `,`, `:` or `;` behind it. The error is the last part of
/// a partition without a `;`.
type Statement = std::result::Result<Vec<(Part, char)>, String>;

/// The partitions of a file, each with the number of its first line. Text behind the last `;` is an
/// error.
fn statements(text: &str) -> Vec<(usize, Statement)> {
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let mut open = Part(1, String::new());
    for (number, line) in (1..).zip(text.lines()) {
        let code = line.split('#').next().unwrap_or("");
        for piece in code.split_inclusive([',', ':', ';']) {
            let words = piece.trim_end_matches([',', ':', ';']);
            let end = piece[words.len()..].chars().next();
            for word in words.split_whitespace() {
                let gap = if open.1.is_empty() { "" } else { " " };
                open = Part(if gap.is_empty() { number } else { open.0 }, open.1 + gap + word);
            }
            let Some(end) = end else { continue };
            parts.push((std::mem::replace(&mut open, Part(number, String::new())), end));
            if end == ';' {
                let first = parts.first().map_or(number, |(Part(line, _), _)| *line);
                all.push((first, Ok(std::mem::take(&mut parts))));
            }
        }
    }
    let unfinished =
        parts.into_iter().map(|(part, _)| part).chain([open]).rfind(|part| !part.1.is_empty());
    all.extend(unfinished.map(|Part(line, word)| (line, Err(word))));
    all
}

struct Reader<'a> {
    file: &'a str,
    line: usize,
    all: Vec<Partition>,
}

struct Head {
    partition: Partition,
    has_key: bool,
    default_membership: MembershipKind,
}

impl Reader<'_> {
    fn wrong(&self, word: &str, problem: Problem) -> PartitionError {
        PartitionError { file: self.file.into(), line: self.line, word: word.into(), problem }
    }

    fn partition(&mut self, parts: Vec<(Part, char)>) -> Result<()> {
        let mut parts = parts.into_iter();
        let Some((Part(line, name), mut end)) = parts.next() else { return Ok(()) };
        if name.is_empty() && end == ';' {
            return Ok(());
        }
        self.line = line;
        let mut head = self.head(&name)?;
        while end == ',' {
            let Some((Part(line, flag), next)) = parts.next() else { break };
            (self.line, end) = (line, next);
            self.flag(&mut head, &flag)?;
        }
        for (Part(line, member), end) in parts {
            self.line = line;
            if end == ':' {
                return Err(self.wrong(&member, Problem::Member));
            }
            self.member(&mut head, &member)?;
        }
        if self.all.len() == PARTITIONS_MAX {
            return Err(self.wrong(&name, Problem::TooMany));
        }
        if !head.has_key {
            head.partition.p_key = self.free_key();
        }
        if self.all.iter().any(|other| other.p_key == head.partition.p_key) {
            return Err(self.wrong(&name, Problem::SameKey));
        }
        self.all.push(head.partition);
        Ok(())
    }

    fn head(&self, word: &str) -> Result<Head> {
        let (name, key) = word.split_once('=').map_or((word, None), |(n, k)| (n, Some(k)));
        let name = name.trim();
        let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(self.wrong(word, Problem::Name));
        }
        let is_default = name.eq_ignore_ascii_case("default");
        let mut p_key = PKey::DEFAULT;
        if let Some(key) = key {
            let key = number(key).and_then(|key| u16::try_from(key).ok()).map(PKey);
            let key = key.filter(|key| key.is_valid());
            p_key = key.ok_or_else(|| self.wrong(word, Problem::PKey))?.full();
        }
        let default = Partition::default_one();
        let partition = Partition { p_key, members: Vec::new(), ..default };
        let has_key = key.is_some() || is_default;
        Ok(Head { partition, has_key, default_membership: MembershipKind::Limited })
    }

    fn flag(&self, head: &mut Head, word: &str) -> Result<()> {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        let (flag, value) = (flag.trim().to_ascii_lowercase(), value.trim());
        let partition = &mut head.partition;
        let bad = |values| self.wrong(word, Problem::Value(values));
        let within = |max: u64, values| {
            number(value).filter(|number| *number <= max).ok_or_else(|| bad(values))
        };
        match flag.as_str() {
            "ipoib" => {
                partition.ipoib.get_or_insert_default();
                return Ok(());
            }
            "indx0" => {
                partition.is_first = true;
                return Ok(());
            }
            "defmember" => {
                head.default_membership = self.membership(value)?;
                return Ok(());
            }
            "sl" => {
                partition.sl = within(15, "a service level from 0 to 15")? as u8;
                return Ok(());
            }
            "mtu" | "rate" | "scope" | "q_key" | "tclass" | "flowlabel" => {}
            _ => return Err(self.wrong(word, Problem::UnknownFlag)),
        }
        let Some(groups) = &mut partition.ipoib else {
            return Err(self.wrong(word, Problem::NeedsIpoib));
        };
        match flag.as_str() {
            "mtu" => {
                let code = within(5, MTU)? as u8;
                groups.mtu =
                    Some(Mtu(code)).filter(|m| m.bytes().is_some()).ok_or_else(|| bad(MTU))?;
            }
            "rate" => {
                let rate = Rate(within(63, RATE)? as u8);
                groups.rate =
                    Some(rate).filter(|r| r.megabits().is_some()).ok_or_else(|| bad(RATE))?;
            }
            "scope" => {
                let scope = Scope(within(15, "a scope from 0 to 15; 2 is link-local")? as u8);
                if groups.scopes == IpoibGroups::default().scopes {
                    groups.scopes.clear();
                }
                groups.scopes.push(scope);
            }
            "q_key" => groups.q_key = QKey(within(u32::MAX.into(), "a key of 32 bits")? as u32),
            "tclass" => groups.traffic_class = within(255, "a class from 0 to 255")? as u8,
            _ => groups.flow_label = within(0xf_ffff, "a label of 20 bits")? as u32,
        }
        Ok(())
    }

    fn member(&self, head: &mut Head, word: &str) -> Result<()> {
        if word.is_empty() {
            return Ok(());
        }
        let (ports, membership) = word.split_once('=').map_or((word, None), |(w, m)| (w, Some(m)));
        let ports = match ports.trim().to_ascii_uppercase().as_str() {
            "ALL" => Members::All,
            "ALL_CAS" => Members::Kind(NodeType::CHANNEL_ADAPTER),
            "ALL_SWITCHES" => Members::Kind(NodeType::SWITCH),
            "ALL_ROUTERS" => Members::Kind(NodeType::ROUTER),
            "SELF" => Members::Manager,
            guid => {
                let guid = number(guid).filter(|guid| *guid != 0).map(Guid);
                Members::Port(guid.ok_or_else(|| self.wrong(word, Problem::Member))?)
            }
        };
        let membership = match membership {
            Some(word) => self.membership(word.trim())?,
            None => head.default_membership,
        };
        head.partition.members.push((ports, membership));
        Ok(())
    }

    fn membership(&self, word: &str) -> Result<MembershipKind> {
        match word.to_ascii_lowercase().as_str() {
            "full" => Ok(MembershipKind::Full),
            "limited" => Ok(MembershipKind::Limited),
            "both" => Ok(MembershipKind::Both),
            _ => Err(self.wrong(word, Problem::Membership)),
        }
    }

    fn free_key(&self) -> PKey {
        let taken: BTreeSet<u16> = self.all.iter().map(|one| one.p_key.partition()).collect();
        let free = (1..0x7fff).find(|key| !taken.contains(key));
        PKey(free.unwrap_or(1)).full()
    }

    /// Puts the default partition first. If the file does not define it, all ports are limited
    /// members.
    fn finish(mut self) -> Result<Partitions> {
        let at = self.all.iter().position(|partition| partition.p_key == PKey::DEFAULT);
        let default = at.map_or_else(Partition::default_one, |at| self.all.remove(at));
        self.all.insert(0, default);
        Ok(Partitions { all: self.all })
    }
}

const MTU: &str = "a code from 1 (256 bytes) to 5 (4096)";
const RATE: &str = "a code of IBA 15.2.5.16, as 3 for 10 Gb/s or 16 for 100 Gb/s";

fn number(word: &str) -> Option<u64> {
    let word = word.trim().to_ascii_lowercase();
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Candidate;
    use super::*;
    use pollux_wire::address::Gid;
    use proptest::prelude::*;

    fn port(guid: u64) -> Candidate {
        let kind = NodeType::CHANNEL_ADAPTER;
        Candidate { guid: Guid(guid), kind, is_manager: guid == 1 }
    }

    #[test]
    fn a_file_gives_ports_their_keys() {
        let text = "# of a rack\n\
            Default=0x7fff, ipoib, mtu=5, rate=16 : ALL=limited, SELF=full ;\n\
            blue=0x123, ipoib, Q_Key=0xabcd, indx0, defmember=limited :\n\
               0x3=full, 0x5=both,\n   0x1 ;\n\
            green : ALL_SWITCHES=full, ALL_CAS ; red = 0x8124 ;;";
        let read = Partitions::read("conf", text).unwrap();
        let keys = |port| read.keys(&port).into_iter().map(|key| key.0).collect::<Vec<_>>();
        assert_eq!(keys(port(3)), [0x8123, 0x7fff, 1]);
        assert_eq!(keys(port(5)), [0x8123, 0x123, 0x7fff, 1]);
        assert_eq!(keys(port(1)), [0x123, 0xffff, 1], "the manager's own");
        assert_eq!(keys(Candidate { kind: NodeType::SWITCH, ..port(9) }), [0x7fff, 0x8001]);
        let [default, blue, _, red] = read.all() else { panic!("four") };
        let groups = default.ipoib.as_ref().unwrap();
        assert_eq!((groups.mtu, groups.rate), (Mtu::BYTES_4096, Rate::GBPS_100));
        assert_eq!(blue.ipoib.as_ref().unwrap().q_key, QKey(0xabcd));
        assert_eq!((red.p_key, red.members.len()), (PKey(0x8124), 0));
        let gids = blue.broadcast_groups().into_iter().map(|gid: Gid| gid.to_string());
        assert_eq!(gids.collect::<Vec<_>>(), ["ff12:401b:8123::ffff:ffff", "ff12:601b:8123::1"]);
    }

    #[test]
    fn without_a_line_all_ports_are_limited_members_of_the_default() {
        let read = Partitions::read("conf", "blue=2:ALL;").unwrap();
        assert_eq!(read.keys(&port(7)), [PKey(0x7fff), PKey(2)]);
        assert_eq!(read.keys(&port(1)), [PKey::DEFAULT, PKey(2)]);
        assert_eq!(Partitions::default().keys(&port(7)), [PKey::DEFAULT]);
    }

    #[test]
    fn errors_name_file_line_word_and_remedy() {
        let cases = [
            ("blue=2 : ALL", "conf:1: `ALL`: end the partition with ;"),
            ("\n=3;", "conf:2: `=3`: begin the partition with its name"),
            ("a=0x10000;", "conf:1: `a=0x10000`: give a key from 0x1"),
            ("a=0x8000;", "give a key from 0x1"),
            ("a=2;\nb=2;", "conf:2: `b=2`: another partition has this key"),
            ("a=2,\n ipob;", "conf:2: `ipob`: take ipoib, mtu="),
            ("a=2, mtu=4;", "`mtu=4`: this flag needs an IPoIB group; put ipoib"),
            ("a=2, ipoib, mtu=6;", "`mtu=6`: give a code from 1 (256 bytes) to 5"),
            ("a=2, ipoib, rate=1;", "`rate=1`: give a code of IBA"),
            ("a=2, sl=16;", "give a service level from 0 to 15"),
            ("a=2 : ALLE;", "`ALLE`: name a port by its GUID"),
            ("a=2 : ALL=half;", "`half`: take full, limited or both"),
            ("a=2, defmember=x : ALL;", "`x`: take full, limited or both"),
            ("a=2 : ALL : 3;", "name a port by its GUID"),
        ];
        for (text, expected) in cases {
            let message = match Partitions::read("conf", text) {
                Err(error) => error.to_string(),
                Ok(read) => panic!("{text} gives {read:?}"),
            };
            assert!(message.contains(expected), "{text}\ngives {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_partitions_or_an_error(
            text in "([a-d=,:;#\\n 0-9x]|ipoib|mtu=|ALL|SELF|=full){0,40}",
        ) {
            if let Ok(read) = Partitions::read("any", &text) {
                prop_assert_eq!(read.all()[0].p_key, PKey::DEFAULT);
            }
        }
    }
}
