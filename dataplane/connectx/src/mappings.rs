//! The memory mappings of this process, from `/proc/self/maps` (proc(5)).

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The permissions in the format of the kernel, such as `rw-p`.
    pub(crate) rights: String,
    /// The inode of the mapped file; 0 without a file.
    pub(crate) inode: u64,
    pub(crate) name: String,
}

pub(crate) fn mappings() -> Vec<Mapping> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(Mapping::parse).collect()
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut columns = line.split_ascii_whitespace();
        let (start, end) = columns.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let rights = columns.next()?.to_owned();
        // Skip the offset and the device.
        let inode = columns.nth(2)?.parse().ok()?;
        let name = columns.next().unwrap_or_default().to_owned();
        Some(Self { start: address(start)?, end: address(end)?, rights, inode, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_a_file_are_read() {
        let file = "7f00a000-7f00c000 rw-s 00001000 00:01 1234   /memfd:uverbs0 (deleted)";
        let mapping = Mapping::parse(file).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.inode), (0x7f00_a000, 0x7f00_c000, 1234));
        assert_eq!((&*mapping.rights, &*mapping.name), ("rw-s", "/memfd:uverbs0"));
        let plain = Mapping::parse("1000-2000 rw-p 00000000 00:00 0").unwrap();
        assert_eq!((plain.inode, &*plain.name), (0, ""));
        assert_eq!(Mapping::parse("no mapping"), None);
    }
}
