//! The files that the rules examine: those that git tracks, as text.
//!
//! Without git (an unpacked archive) every file counts except build output and dot-directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rust::{self, Line};

/// A file of the tree.
#[derive(Debug)]
pub struct SourceFile {
    /// From the root of the tree, with `/` between.
    pub path: String,
    /// All of it.
    pub text: String,
    /// Its lines, split into code and comment, if it is Rust; otherwise empty.
    pub rust: Vec<Line>,
}

impl SourceFile {
    fn new(path: String, text: String) -> Self {
        let rust = if path.ends_with(".rs") { rust::lines(&text) } else { Vec::new() };
        Self { path, text, rust }
    }

    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it is run by an interpreter, named or not.
    pub fn is_script(&self) -> bool {
        self.text.starts_with("#!/") || self.path.ends_with(".sh")
    }
}

/// All files that are text, in the order of their paths.
#[derive(Debug, Default)]
pub struct Tree {
    /// Tracked files, by path.
    pub files: Vec<SourceFile>,
}

impl Tree {
    /// Reads the tree at `root`. Files that are not UTF-8 are left out: no rule is about them.
    pub fn read(root: &Path) -> io::Result<Self> {
        let paths = paths(root)?;
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            match fs::read(root.join(&path)) {
                Ok(bytes) => {
                    if let Ok(text) = String::from_utf8(bytes) {
                        files.push(SourceFile::new(path, text));
                    }
                }
                // Deleted and not yet committed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
            }
        }
        Ok(Self { files })
    }

    /// A tree of these paths and texts.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files =
            files.iter().map(|(path, text)| SourceFile::new((*path).into(), (*text).into()));
        Self { files: files.collect() }
    }

    /// The tracked file of a path.
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Files with the extension `rs`.
    pub fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

/// The root of the tree that this crate was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The paths of all files below `root`, text or not, in order.
pub fn paths(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = match tracked(root) {
        Some(paths) => paths,
        None => present(root)?,
    };
    paths.sort();
    Ok(paths)
}

/// The files that git tracks below `root`; `None` without git or a repository, or when `root` is
/// not in it.
fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = paths.split_terminator('\0').map(String::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

/// Every file below `root`, but for build output and what hides in dot-directories.
fn present(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = directory.join(&name);
            if !entry.file_type()?.is_dir() {
                paths.push(path.to_string_lossy().into_owned());
            } else if name != "target" && !(name.starts_with('.') && name != ".ci") {
                directories.push(path);
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_directory_is_read() {
        let mut present = present(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        present.retain(|path| path == "Cargo.toml" || path == "src/tree.rs");
        present.sort();
        assert_eq!(present, ["Cargo.toml", "src/tree.rs"]);
    }

    #[test]
    fn a_directory_outside_any_repository_has_nothing_tracked() {
        assert_eq!(tracked(Path::new("/proc")), None);
    }
}
