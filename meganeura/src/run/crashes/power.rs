//! A model of a file system that loses power: it keeps all durable data, and part of the rest.
//!
//! Of the writes to a file since its last sync, it keeps a prefix (none and all included). The last write may also be
//! torn in half, or leave its length filled with zeros. Of the changes to a folder's names since its last sync, it
//! keeps a prefix.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::io::disk::simulated::Event;
use crate::seed::Generator;

/// Folders (`None`) and the bytes of files, by path from the root.
pub(super) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Up to this number of combined states, all are checked. Beyond it, only those where at most one file or folder
/// deviates from "nothing kept" or "everything kept", and some random ones.
const ALL: usize = 32;
const AT_RANDOM: usize = 12;

#[derive(Clone, Debug)]
pub(super) struct Disk {
    root: PathBuf,
    /// The root comes first.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
enum Node {
    File { durable: Vec<u8>, since: Vec<Data> },
    Folder { durable: Names, since: Vec<Change> },
}

type Names = BTreeMap<OsString, usize>;

#[derive(Clone, Debug)]
enum Data {
    Write(u64, Vec<u8>),
    Cut(u64),
}

#[derive(Clone, Debug)]
enum Change {
    Link(OsString, usize),
    Unlink(OsString),
    Rename(OsString, OsString),
}

impl Disk {
    /// An empty folder at this path.
    pub(super) fn new(root: &Path) -> Self {
        let folder = Node::Folder { durable: Names::new(), since: Vec::new() };
        Self { root: root.to_owned(), nodes: vec![folder] }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create(path) => self.link(path, Node::File { durable: Vec::new(), since: Vec::new() }),
            Event::CreateFolder(path) => self.link(path, Node::Folder { durable: Names::new(), since: Vec::new() }),
            Event::Write(path, offset, bytes) => self.data(path).1.push(Data::Write(*offset, bytes.clone())),
            Event::Cut(path, length) => self.data(path).1.push(Data::Cut(*length)),
            Event::Sync(path) => {
                let (durable, since) = self.data(path);
                since.drain(..).for_each(|data| data.apply(durable));
            }
            Event::Lost(path) => self.data(path).1.clear(),
            Event::Remove(path) => self.changes(path).1.push(Change::Unlink(name(path))),
            Event::Rename(from, to) => {
                assert_eq!(from.parent(), to.parent());
                self.changes(from).1.push(Change::Rename(name(from), name(to)));
            }
            Event::SyncFolder(path) => {
                // Folders outside of the model existed before.
                if let Some(index) = path.starts_with(&self.root).then(|| self.find(path)) {
                    let Node::Folder { durable, since } = &mut self.nodes[index] else { panic!("{path:?} is a file") };
                    since.drain(..).for_each(|change| change.apply(durable));
                }
            }
            Event::Note(_) => {}
        }
    }

    fn link(&mut self, path: &Path, node: Node) {
        let index = self.nodes.len();
        self.nodes.push(node);
        self.changes(path).1.push(Change::Link(name(path), index));
    }

    fn find(&self, path: &Path) -> usize {
        let below = path.strip_prefix(&self.root).expect("a path of the model");
        below.iter().fold(0, |folder, part| match &self.nodes[folder] {
            Node::Folder { durable, since } => {
                let mut names = durable.clone();
                since.iter().for_each(|change| change.apply(&mut names));
                *names.get(part).unwrap_or_else(|| panic!("{} is not there", path.display()))
            }
            Node::File { .. } => panic!("{} is in a file", path.display()),
        })
    }

    fn data(&mut self, path: &Path) -> (&mut Vec<u8>, &mut Vec<Data>) {
        let index = self.find(path);
        match &mut self.nodes[index] {
            Node::File { durable, since } => (durable, since),
            Node::Folder { .. } => panic!("{} is a folder", path.display()),
        }
    }

    /// The names of the folder that contains a path, and their changes since the last sync.
    fn changes(&mut self, path: &Path) -> (&mut Names, &mut Vec<Change>) {
        let index = self.find(path.parent().expect("below the root"));
        match &mut self.nodes[index] {
            Node::Folder { durable, since } => (durable, since),
            Node::File { .. } => panic!("{} is in a file", path.display()),
        }
    }

    /// The tree if nothing but durable data survives.
    pub(super) fn least(&self) -> Tree {
        self.tree(&vec![0; self.nodes.len()])
    }

    /// The trees that a power failure may leave now.
    pub(super) fn leavings(&self, rng: &mut Generator) -> HashSet<Tree> {
        // The number of possible states of each node; an unchanged node has one.
        let counts: Vec<_> = self.nodes.iter().map(Node::states).collect();
        let (none, all) = (vec![0; counts.len()], counts.iter().map(|count| count - 1).collect::<Vec<_>>());
        let product = counts.iter().fold(1usize, |product, &count| product.saturating_mul(count));
        let mut choices = vec![none.clone(), all.clone()];
        if product <= ALL {
            choices.extend((0..product).map(|mut number| {
                let mut choose = |&count: &usize| {
                    let choice = number % count;
                    number /= count;
                    choice
                };
                counts.iter().map(&mut choose).collect()
            }));
        } else {
            for (index, &count) in counts.iter().enumerate() {
                for base in [&none, &all] {
                    choices.extend((0..count).map(|choice| {
                        let mut changed = base.clone();
                        changed[index] = choice;
                        changed
                    }));
                }
            }
            choices.extend((0..AT_RANDOM).map(|_| {
                counts.iter().map(|&count| usize::try_from(rng.next_u64() % count as u64).expect("small")).collect()
            }));
        }
        choices.iter().map(|choice| self.tree(choice)).collect()
    }

    fn tree(&self, choices: &[usize]) -> Tree {
        let mut tree = Tree::new();
        self.grow(0, Path::new(""), choices, &mut tree);
        tree
    }

    fn grow(&self, node: usize, path: &Path, choices: &[usize], tree: &mut Tree) {
        match &self.nodes[node] {
            Node::File { durable, since } => {
                tree.insert(path.to_owned(), Some(left(durable, since, choices[node])));
            }
            Node::Folder { durable, since } => {
                tree.insert(path.to_owned(), None);
                let mut names = durable.clone();
                since[..choices[node]].iter().for_each(|change| change.apply(&mut names));
                names.iter().for_each(|(name, &node)| self.grow(node, &path.join(name), choices, tree));
            }
        }
    }
}

impl Node {
    fn states(&self) -> usize {
        match self {
            Self::File { since, .. } if since.is_empty() => 1,
            // Every prefix, and the last write torn or zero-filled.
            Self::File { since, .. } => since.len() + 3,
            Self::Folder { since, .. } => since.len() + 1,
        }
    }
}

/// The bytes of a file after the power failure.
fn left(durable: &[u8], since: &[Data], choice: usize) -> Vec<u8> {
    let mut bytes = durable.to_vec();
    let count = since.len();
    let whole = if choice <= count { choice } else { count - 1 };
    since[..whole].iter().for_each(|data| data.clone().apply(&mut bytes));
    match since.last() {
        Some(Data::Write(offset, last)) if choice == count + 1 => {
            Data::Write(*offset, last[..last.len() / 2].to_vec()).apply(&mut bytes);
        }
        Some(Data::Write(offset, last)) if choice == count + 2 => {
            Data::Write(*offset, vec![0; last.len()]).apply(&mut bytes);
        }
        _ => {}
    }
    bytes
}

impl Data {
    fn apply(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let offset = usize::try_from(offset).expect("small");
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[offset..][..data.len()].copy_from_slice(&data);
            }
            Self::Cut(length) => bytes.resize(usize::try_from(length).expect("small"), 0),
        }
    }
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Link(name, node) => _ = names.insert(name.clone(), *node),
            Self::Unlink(name) => _ = names.remove(name),
            Self::Rename(from, to) => {
                let node = names.remove(from).expect("there by the changes before");
                names.insert(to.clone(), node);
            }
        }
    }
}

fn name(path: &Path) -> OsString {
    path.file_name().expect("below the root").to_owned()
}

/// A test of the model itself: only data that is not durable can be lost.
#[test]
fn only_durable_data_survives() {
    let root = Path::new("root");
    let (folder, file, other) = (root.join("a"), root.join("a/x"), root.join("a/y"));
    let mut disk = Disk::new(root);
    let mut rng = crate::Seed::new(1).rng();
    let tree = |entries: &[(&str, Option<&str>)]| -> Tree {
        let root = (PathBuf::new(), None);
        let entries = entries.iter().map(|(path, bytes)| (PathBuf::from(path), bytes.map(Into::into)));
        std::iter::once(root).chain(entries).collect()
    };
    disk.apply(&Event::CreateFolder(folder.clone()));
    assert_eq!(disk.leavings(&mut rng), [tree(&[]), tree(&[("a", None)])].into());
    disk.apply(&Event::SyncFolder(root.to_owned()));
    disk.apply(&Event::Create(file.clone()));
    disk.apply(&Event::Write(file.clone(), 0, b"1234".to_vec()));
    let lost = tree(&[("a", None)]);
    let with = |text: &str| tree(&[("a", None), ("a/x", Some(text))]);
    let expected = HashSet::from([lost.clone(), with(""), with("1234"), with("12"), with("\0\0\0\0")]);
    assert_eq!(disk.leavings(&mut rng), expected);
    disk.apply(&Event::Sync(file.clone()));
    assert_eq!(disk.leavings(&mut rng), [lost.clone(), with("1234")].into(), "the bytes are durable, the name is not");
    assert_eq!(disk.least(), lost);
    disk.apply(&Event::SyncFolder(folder));
    assert_eq!(disk.leavings(&mut rng), [with("1234")].into());
    disk.apply(&Event::Rename(file, other.clone()));
    let renamed = tree(&[("a", None), ("a/y", Some("1234"))]);
    assert_eq!(disk.leavings(&mut rng), [with("1234"), renamed.clone()].into());
    disk.apply(&Event::Remove(other));
    assert_eq!(disk.leavings(&mut rng), [with("1234"), renamed, lost].into());
}
