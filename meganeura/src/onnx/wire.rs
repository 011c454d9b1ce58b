//! The size of a file's messages in memory, before they are decoded. Knows which fields [`proto`] decodes.
//!
//! An empty message takes two bytes of a file and up to two hundred in memory. Files that grow like this hold no model.

use super::proto;
use crate::Result;
use crate::error::bail;

/// The most bytes of messages for each byte of a file. A node with short names grows about 15 times.
const MOST_GROWTH: usize = 24;

/// The bytes of messages that any file may have.
const ALWAYS: usize = 16 << 20;

/// The deepest nesting of messages. Decoding refuses deeper ones.
const DEEPEST: usize = 100;

/// A kind of message.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    OperatorSet,
    Function,
    Graph,
    Node,
    Attribute,
    Tensor,
    Entry,
    ValueInfo,
    Type,
    Nested,
    TensorType,
    Shape,
    Dimension,
    Present,
}

/// The memory of a field.
enum Field {
    /// A message of this kind, and its own size.
    Message(Kind, usize),
    /// A string or bytes of their length, and their own size.
    Text(usize),
    /// Numbers of this size, each in one varint, or in a packed run of them.
    Varints(usize),
    /// None, or a number that is part of its message.
    None,
}

/// The memory of field `tag` of a message.
fn field(kind: Kind, tag: u64) -> Field {
    let message = |kind, size| Field::Message(kind, size);
    match (kind, tag) {
        (Kind::Model, 7) => message(Kind::Graph, 0),
        (Kind::Model, 8) => message(Kind::OperatorSet, size_of::<proto::OperatorSet>()),
        (Kind::Model, 25) => message(Kind::Function, size_of::<proto::Function>()),
        (Kind::Function, 4..=6) => Field::Text(size_of::<String>()),
        (Kind::Function, 7) => message(Kind::Node, size_of::<proto::Node>()),
        (Kind::Function, 9) => message(Kind::OperatorSet, size_of::<proto::OperatorSet>()),
        (Kind::Function, 11) => message(Kind::Attribute, size_of::<proto::Attribute>()),
        (Kind::Graph, 1) => message(Kind::Node, size_of::<proto::Node>()),
        (Kind::Graph, 5) => message(Kind::Tensor, size_of::<proto::Tensor>()),
        (Kind::Graph, 11 | 12) => message(Kind::ValueInfo, size_of::<proto::ValueInfo>()),
        (Kind::Graph, 15) => message(Kind::Present, 0),
        (Kind::Node, 1 | 2) => Field::Text(size_of::<String>()),
        (Kind::Node, 5) => message(Kind::Attribute, size_of::<proto::Attribute>()),
        (Kind::Attribute, 5) => message(Kind::Tensor, size_of::<proto::Tensor>()),
        (Kind::Attribute, 6) => message(Kind::Graph, size_of::<proto::Graph>()),
        (Kind::Attribute, 7 | 8) => Field::Varints(size_of::<i64>()),
        (Kind::Attribute, 9) => Field::Text(size_of::<prost::bytes::Bytes>()),
        (Kind::Tensor, 1 | 7 | 11) => Field::Varints(size_of::<i64>()),
        (Kind::Tensor, 5) => Field::Varints(size_of::<i32>()),
        (Kind::Tensor, 6) => Field::Text(size_of::<prost::bytes::Bytes>()),
        (Kind::Tensor, 13) => message(Kind::Entry, size_of::<proto::Entry>()),
        (Kind::ValueInfo, 2) => message(Kind::Type, 0),
        (Kind::Type, 1) => message(Kind::TensorType, 0),
        (Kind::Type, 4 | 9) => message(Kind::Nested, 0),
        (Kind::Nested, 1) => message(Kind::Type, size_of::<proto::Type>()),
        (Kind::TensorType, 2) => message(Kind::Shape, 0),
        (Kind::Shape, 1) => message(Kind::Dimension, size_of::<proto::Dimension>()),
        _ => Field::None,
    }
}

/// Refuses a file whose messages would take much more memory than the file.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let memory = size(Kind::Model, bytes, 0);
    if memory > bytes.len().saturating_mul(MOST_GROWTH).saturating_add(ALWAYS) {
        bail!(Checkpoint, "its {} bytes hold messages of {memory} bytes, far more than a model has", bytes.len());
    }
    Ok(())
}

/// The memory of a message's fields, up to the first that is damaged: decoding ends there too.
fn size(kind: Kind, mut bytes: &[u8], depth: usize) -> usize {
    let mut memory = 0;
    while let Some(key) = varint(&mut bytes) {
        let content: &[u8] = match key & 7 {
            0 => match varint(&mut bytes) {
                Some(_) => &[0],
                None => break,
            },
            1 => match bytes.split_off(..8) {
                Some(_) => &[0],
                None => break,
            },
            2 => {
                let length = varint(&mut bytes).and_then(|length| usize::try_from(length).ok());
                let Some(content) = length.and_then(|length| bytes.split_off(..length)) else { break };
                content
            }
            5 => match bytes.split_off(..4) {
                Some(_) => &[0],
                None => break,
            },
            // Groups are skipped, and hold nothing that is decoded.
            _ => break,
        };
        memory += match field(kind, key >> 3) {
            Field::Message(_, own) if depth == DEEPEST => own,
            Field::Message(kind, own) => own + size(kind, content, depth + 1),
            Field::Text(own) => own,
            Field::Varints(each) => each * content.iter().filter(|&&byte| byte < 0x80).count(),
            Field::None => 0,
        };
    }
    memory
}

/// Splits off a number of up to ten bytes.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..70).step_by(7) {
        let &byte = bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field `tag` with this content.
    fn within(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    #[test]
    fn empty_messages_are_refused_before_they_are_decoded() {
        // Nodes, tensors, and attributes of a node.
        for tag in [1, 5] {
            let file = within(7, &within(tag, &[]).repeat(1 << 20));
            assert!(check(&file).unwrap_err().to_string().contains("far more than a model has"), "{tag}");
        }
        let file = within(7, &within(1, &within(5, &[]).repeat(1 << 20)));
        assert!(check(&file).is_err());
        let file = within(7, &within(1, &within(1, b"x").repeat(100)).repeat(1000));
        assert!(check(&file).is_ok());
    }

    #[test]
    fn the_size_is_that_of_the_decoded_messages() {
        use prost::Message;
        let node = proto::Node { input: vec!["a".into(); 3], output: vec!["b".into()], ..proto::Node::default() };
        let tensor = proto::Tensor { dims: vec![1; 5], int64_data: vec![1 << 40; 7], ..proto::Tensor::default() };
        let graph = proto::Graph { node: vec![node; 2], initializer: vec![tensor], ..proto::Graph::default() };
        let model = proto::Model { graph: Some(graph), ..proto::Model::default() };
        let expected = 2 * (size_of::<proto::Node>() + 4 * size_of::<String>()) + size_of::<proto::Tensor>() + 12 * 8;
        assert_eq!(size(Kind::Model, &model.encode_to_vec(), 0), expected);
    }
}
