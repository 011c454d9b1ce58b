//! Protocol buffers as trees, for mutations that keep the lengths of messages right. Knows which fields of an ONNX
//! model are messages.

use fastrand::Rng;

use crate::mutate;

/// The messages of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Value,
    Other,
}

/// A field: its tag, and its content.
#[derive(Clone, Debug)]
pub struct Field {
    tag: u64,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Number(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Kind, Vec<Field>),
}

/// The kind of a field that is a message.
fn inside(kind: Kind, tag: u64) -> Option<Kind> {
    Some(match (kind, tag) {
        (Kind::Model, 7) => Kind::Graph,
        (Kind::Model, 8) => Kind::Other,
        (Kind::Graph, 1) => Kind::Node,
        (Kind::Graph | Kind::Attribute, 5) => Kind::Tensor,
        (Kind::Graph, 11 | 12) => Kind::Value,
        (Kind::Node, 5) => Kind::Attribute,
        // The type of a value, its shape, and its dimensions.
        (Kind::Value, 2) | (Kind::Other, 1..=2) | (Kind::Tensor, 13) => Kind::Other,
        _ => return None,
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let &byte = bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn write_varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// The fields of a message; `None` if it is damaged.
pub fn parse(kind: Kind, mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let content = match key & 7 {
            0 => Content::Number(varint(&mut bytes)?),
            1 => Content::Fixed(bytes.split_off(..8)?.to_vec()),
            5 => Content::Fixed(bytes.split_off(..4)?.to_vec()),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let content = bytes.split_off(..length)?;
                match inside(kind, key >> 3).and_then(|kind| Some((kind, parse(kind, content)?))) {
                    Some((kind, fields)) => Content::Message(kind, fields),
                    None => Content::Bytes(content.to_vec()),
                }
            }
            _ => return None,
        };
        fields.push(Field { tag: key >> 3, content });
    }
    Some(fields)
}

/// The bytes of a message.
pub fn bytes(fields: &[Field]) -> Vec<u8> {
    let mut all = Vec::new();
    for Field { tag, content } in fields {
        let wire = match content {
            Content::Number(_) => 0,
            Content::Fixed(bytes) if bytes.len() == 8 => 1,
            Content::Fixed(_) => 5,
            Content::Bytes(_) | Content::Message(..) => 2,
        };
        write_varint(tag << 3 | wire, &mut all);
        let run = match content {
            Content::Number(number) => {
                write_varint(*number, &mut all);
                continue;
            }
            Content::Fixed(bytes) => {
                all.extend_from_slice(bytes);
                continue;
            }
            Content::Bytes(bytes) => bytes.clone(),
            Content::Message(_, fields) => bytes(fields),
        };
        write_varint(run.len() as u64, &mut all);
        all.extend(run);
    }
    all
}

/// Calls `f` with every message of a tree.
fn each<'a>(kind: Kind, fields: &'a [Field], f: &mut impl FnMut(Kind, &'a [Field])) {
    f(kind, fields);
    for field in fields {
        if let Content::Message(kind, fields) = &field.content {
            each(*kind, fields, f);
        }
    }
}

/// Calls `f` with message `at` of a tree, in order.
fn with(kind: Kind, fields: &mut Vec<Field>, at: &mut usize, f: &mut impl FnMut(Kind, &mut Vec<Field>)) {
    if *at == 0 {
        f(kind, fields);
    }
    *at = at.wrapping_sub(1);
    for field in fields {
        if let Content::Message(kind, fields) = &mut field.content {
            with(*kind, fields, at, f);
        }
    }
}

/// Changes a message somewhere in the tree of a model.
pub fn mutate(model: &mut Vec<Field>, words: &[&str], rng: &mut Rng) {
    let (mut kinds, mut names) = (Vec::new(), Vec::new());
    each(Kind::Model, model, &mut |kind, fields| {
        kinds.push(kind);
        // The names of values: results of nodes, and tensors.
        let is_name =
            |field: &&Field| matches!((kind, field.tag), (Kind::Node, 2) | (Kind::Tensor, 8) | (Kind::Value, 1));
        names.extend(fields.iter().filter(is_name).filter_map(|field| match &field.content {
            Content::Bytes(name) => Some(name.clone()),
            _ => None,
        }));
    });
    // Nodes and what is in them, more often than not.
    let wanted = [Kind::Node, Kind::Attribute, Kind::Tensor][rng.usize(..3)];
    let places: Vec<_> = (0..kinds.len()).filter(|&at| kinds[at] == wanted).collect();
    let mut at = if places.is_empty() || rng.u8(..4) == 0 {
        rng.usize(..kinds.len())
    } else {
        places[rng.usize(..places.len())]
    };
    with(Kind::Model, model, &mut at, &mut |kind, fields| change(kind, fields, words, &names, rng));
}

fn change(kind: Kind, fields: &mut Vec<Field>, words: &[&str], names: &[Vec<u8>], rng: &mut Rng) {
    if fields.is_empty() {
        fields.push(Field { tag: rng.u64(1..16), content: Content::Number(rng.u64(..4)) });
        return;
    }
    let at = rng.usize(..fields.len());
    match rng.u8(..10) {
        0 => drop(fields.remove(at)),
        1 => {
            let copies = if rng.u8(..4) == 0 { 1 << rng.u32(..12) } else { 1 };
            let field = fields[at].clone();
            fields.splice(at..at, std::iter::repeat_n(field, copies));
        }
        2 => fields.swap(at, 0),
        // An operand that is another value, or a further one.
        3 | 4 if kind == Kind::Node && !names.is_empty() => {
            let content = Content::Bytes(names[rng.usize(..names.len())].clone());
            match fields.iter_mut().find(|field| field.tag == 1) {
                Some(field) if rng.bool() => field.content = content,
                _ => fields.insert(at, Field { tag: 1, content }),
            }
        }
        // Another operator, or the name of another attribute.
        5 | 6 if matches!(kind, Kind::Node | Kind::Attribute) && !words.is_empty() => {
            let tag = if kind == Kind::Node { 4 } else { 1 };
            let word = words[rng.usize(..words.len())].as_bytes().to_vec();
            for field in fields.iter_mut().filter(|field| field.tag == tag) {
                field.content = Content::Bytes(word.clone());
            }
        }
        _ => match &mut fields[at].content {
            Content::Number(number) => {
                *number = if rng.bool() { rng.u64(..8) } else { mutate::NUMBERS[rng.usize(..mutate::NUMBERS.len())] };
            }
            Content::Fixed(bytes) => {
                let place = rng.usize(..bytes.len());
                bytes[place] ^= 1 << rng.u8(..8);
            }
            Content::Bytes(bytes) => mutate::bytes(bytes, rng),
            Content::Message(..) => {
                let copy = fields[rng.usize(..fields.len())].clone();
                fields.push(copy);
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_bytes_that_it_was_parsed_from() {
        let node = [&b"\x0a\x01x\x12\x01y\x22\x04Relu\x2a\x08"[..], b"\x0a\x01a\x18\x05\xa0\x01\x02"].concat();
        let graph = [&[0x0a, node.len() as u8][..], &node].concat();
        let model = [&[0x08, 0x07, 0x3a, graph.len() as u8][..], &graph].concat();
        let tree = parse(Kind::Model, &model).unwrap();
        assert_eq!(bytes(&tree), model);
        let mut kinds = Vec::new();
        each(Kind::Model, &tree, &mut |kind, _| kinds.push(kind));
        assert_eq!(kinds, [Kind::Model, Kind::Graph, Kind::Node, Kind::Attribute]);
    }
}
