//! Ensembles of decision trees: all examples step down all trees at once, a level at a time.

use std::collections::HashMap;

use super::call::Call;
use super::element::Element;
use super::learned::{Classes, Transform, constant, rows};
use super::value::{Value, sound};
use crate::error::{bail, shortened};
use crate::host::reserve;
use crate::{DType, Result, Tensor, Var};

/// A comparison of numbers with those of nodes.
type Comparison = fn(&Var, &Var) -> Var;

/// The comparisons by their numbers in `TreeEnsemble`, and their names elsewhere.
const MODES: [(&str, Comparison); 6] = [
    ("BRANCH_LEQ", |x, split| x.le(split)),
    ("BRANCH_LT", |x, split| x.lt(split)),
    ("BRANCH_GTE", |x, split| x.ge(split)),
    ("BRANCH_GT", |x, split| x.gt(split)),
    ("BRANCH_EQ", |x, split| x.eq(split)),
    ("BRANCH_NEQ", |x, split| x.ne(split)),
];

/// A node that compares, or a leaf.
#[derive(Clone, Default)]
struct Node {
    feature: usize,
    split: f64,
    mode: usize,
    /// A missing number, NaN, holds.
    is_missing_true: bool,
    /// The nodes if the comparison holds, and if it does not.
    next: Option<[usize; 2]>,
}

/// The trees of a node of the graph.
struct Forest {
    nodes: Vec<Node>,
    roots: Vec<usize>,
    /// Node, target and weight.
    weights: Vec<(usize, usize, f64)>,
}

/// An attribute of numbers, or the tensor that may stand in its place.
fn numbers(call: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    if let Some(tensor) = call.tensor(&format!("{name}_as_tensor"))? {
        return Ok(tensor.as_floats());
    }
    // They are compared with numbers of the same type, so they keep their bits.
    #[expect(clippy::cast_possible_truncation, reason = "they are decimals of an `f32`")]
    Ok(call.reals(name)?.unwrap_or_default().into_iter().map(|number| f64::from(number as f32)).collect())
}

/// A list of as many integers of at least 0 as there are elements elsewhere.
fn places(call: &Call<'_>, name: &str, count: usize) -> Result<Vec<usize>> {
    let list = call.optional_list(name)?.unwrap_or_default();
    match list.iter().map(|&place| usize::try_from(place)).collect::<Result<Vec<_>, _>>() {
        Ok(places) if places.len() == count => Ok(places),
        Ok(places) => bail!(Checkpoint, "the attribute `{name}` has {} elements, not {count}", places.len()),
        Err(_) => bail!(Checkpoint, "the attribute `{name}` has a negative element"),
    }
}

/// Like [`places`], of truth values, all false if there are none.
fn truths(call: &Call<'_>, name: &str, count: usize) -> Result<Vec<bool>> {
    let is_absent = call.attribute(name)?.is_none_or(|attribute| attribute.ints.is_empty());
    let list = if is_absent { vec![0; count] } else { places(call, name, count)? };
    Ok(list.into_iter().map(|truth| truth != 0).collect())
}

impl Forest {
    /// The trees of the operators before `TreeEnsemble`, whose nodes have numbers of their own in each tree. The
    /// weights' attributes start with `prefix`.
    fn numbered(call: &Call<'_>, prefix: &str) -> Result<Self> {
        call.ignore(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
        let Some(modes) = call.texts("nodes_modes")? else {
            bail!(Checkpoint, "the attribute `nodes_modes` is missing")
        };
        let count = modes.len();
        let list = |name: &str| places(call, name, count);
        let (trees, ids, features) = (list("nodes_treeids")?, list("nodes_nodeids")?, list("nodes_featureids")?);
        let next = [list("nodes_truenodeids")?, list("nodes_falsenodeids")?];
        let missing = truths(call, "nodes_missing_value_tracks_true", count)?;
        let splits = numbers(call, "nodes_values")?;
        if splits.len() != count {
            bail!(Checkpoint, "the attribute `nodes_values` has {} elements, not {count}", splits.len());
        }
        let by_id: HashMap<_, _> = trees.iter().copied().zip(ids).zip(0..).collect();
        if by_id.len() != count {
            bail!(Checkpoint, "two nodes of a tree have one number");
        }
        let find = |tree: usize, id: usize| match by_id.get(&(tree, id)) {
            Some(&at) => Ok(at),
            None => bail!(Checkpoint, "tree {tree} has no node {id}"),
        };
        let (mut nodes, mut is_root) = (Vec::new(), vec![true; count]);
        for (at, mode) in modes.iter().enumerate() {
            let mut node = Node::default();
            if mode != "LEAF" {
                let Some(mode) = MODES.iter().position(|(name, _)| name == mode) else {
                    bail!(Checkpoint, "a node has the mode {:?}", shortened(mode));
                };
                let [yes, no] = [find(trees[at], next[0][at])?, find(trees[at], next[1][at])?];
                (is_root[yes], is_root[no]) = (false, false);
                let (feature, split, is_missing_true) = (features[at], splits[at], missing[at]);
                node = Node { feature, split, mode, is_missing_true, next: Some([yes, no]) };
            }
            nodes.push(node);
        }
        let values = numbers(call, &format!("{prefix}_weights"))?;
        let list = |what: &str| places(call, &format!("{prefix}_{what}"), values.len());
        let mut weights = Vec::new();
        for (((tree, id), target), &value) in
            list("treeids")?.into_iter().zip(list("nodeids")?).zip(list("ids")?).zip(&values)
        {
            weights.push((find(tree, id)?, target, value));
        }
        let roots = (0..count).filter(|&at| is_root[at]).collect();
        Ok(Self { nodes, roots, weights })
    }

    /// The trees of `TreeEnsemble`, whose leaves are behind the other nodes here.
    fn listed(call: &Call<'_>) -> Result<Self> {
        call.ignore(&["nodes_hitrates"]);
        let tensor = |name: &str| match call.tensor(name)? {
            Some(tensor) => Ok(tensor.as_floats()),
            None => bail!(Checkpoint, "the attribute `{name}` is missing"),
        };
        let (splits, values) = (tensor("nodes_splits")?, tensor("leaf_weights")?);
        let modes =
            call.tensor("nodes_modes")?.and_then(|modes| modes.as_ints().map(<[_]>::to_vec)).unwrap_or_default();
        let count = splits.len();
        if modes.len() != count {
            bail!(Checkpoint, "the attribute `nodes_modes` has {} elements, not {count}", modes.len());
        }
        let features = places(call, "nodes_featureids", count)?;
        let next = [places(call, "nodes_truenodeids", count)?, places(call, "nodes_falsenodeids", count)?];
        let is_leaf = [truths(call, "nodes_trueleafs", count)?, truths(call, "nodes_falseleafs", count)?];
        let missing = truths(call, "nodes_missing_value_tracks_true", count)?;
        let targets = places(call, "leaf_targetids", values.len())?;
        let mut nodes = Vec::new();
        for at in 0..count {
            let place = |side: usize| match (next[side][at], is_leaf[side][at]) {
                (leaf, true) if leaf < values.len() => Ok(count + leaf),
                (node, false) if node < count => Ok(node),
                (place, _) => bail!(Checkpoint, "node {at} leads to {place}, which there is not"),
            };
            let mode = match usize::try_from(modes[at]) {
                Ok(mode) if mode < MODES.len() => mode,
                Ok(6) => bail!(Checkpoint, "comparisons with sets, `BRANCH_MEMBER`, are not supported"),
                _ => bail!(Checkpoint, "a node has the mode {}", modes[at]),
            };
            let (feature, split, is_missing_true) = (features[at], splits[at], missing[at]);
            nodes.push(Node { feature, split, mode, is_missing_true, next: Some([place(0)?, place(1)?]) });
        }
        nodes.resize(count + values.len(), Node::default());
        let list = call.optional_list("tree_roots")?.unwrap_or_default();
        let roots = places(call, "tree_roots", list.len())?;
        if let Some(root) = roots.iter().find(|&&root| root >= count) {
            bail!(Checkpoint, "a tree starts at node {root}, which there is not");
        }
        let weights = (count..).zip(targets).zip(values).map(|((node, target), value)| (node, target, value)).collect();
        Ok(Self { nodes, roots, weights })
    }

    /// The number of comparisons on the longest way down.
    fn depth(&self) -> Result<usize> {
        let (mut deepest, mut was_visited) = (0, vec![false; self.nodes.len()]);
        let mut ways: Vec<_> = self.roots.iter().map(|&root| (root, 0)).collect();
        while let Some((at, depth)) = ways.pop() {
            let Some(next) = self.nodes[at].next else { continue };
            if std::mem::replace(&mut was_visited[at], true) {
                bail!(Checkpoint, "two ways lead to one of its nodes, so they are no trees");
            }
            deepest = deepest.max(depth + 1);
            ways.extend(next.map(|next| (next, depth + 1)));
        }
        if self.nodes.iter().zip(was_visited).any(|(node, was_visited)| node.next.is_some() && !was_visited) {
            bail!(Checkpoint, "one of its nodes is in no tree");
        }
        Ok(deepest)
    }

    /// The leaves at which examples `x [N, features]` arrive, `[N · trees]`.
    fn leaves(&self, call: &Call<'_>, x: &Var) -> Result<Var> {
        let (examples, columns, trees) = (x.shape()[0], x.shape()[1], self.roots.len());
        // Numbers of nodes are floats on the way, exactly.
        let most = if x.ty().dtype == DType::F64 { u32::MAX as usize } else { 1 << 24 };
        if trees == 0 || self.nodes.len() > most || columns > most {
            bail!(Checkpoint, "{trees} trees with {} nodes, of {columns} numbers", self.nodes.len());
        }
        let compares = |node: &&Node| node.next.is_some();
        if let Some(node) = self.nodes.iter().filter(compares).find(|node| node.feature >= columns) {
            bail!(Checkpoint, "a node compares number {} of examples with {columns}", node.feature);
        }
        let mut modes: Vec<_> = self.nodes.iter().filter(compares).map(|node| node.mode).collect();
        modes.sort_unstable();
        modes.dedup();
        let mut table = Vec::new();
        call.budget.charge(self.nodes.len().saturating_mul(6))?;
        reserve(&mut table, self.nodes.len().saturating_mul(6))?;
        for (at, node) in self.nodes.iter().enumerate() {
            let [yes, no] = node.next.unwrap_or([at, at]);
            let is_missing_true = f64::from(u8::from(node.is_missing_true));
            table.extend([node.feature as f64, node.split, yes as f64, no as f64, node.mode as f64, is_missing_true]);
        }
        let table = constant(call, &[self.nodes.len(), 6], &table)?;
        let roots: Vec<_> = self.roots.iter().map(|&root| u32::try_from(root).unwrap_or(u32::MAX)).collect();
        let roots = call.tape.input(&Tensor::indices(&call.tape.device(), [1, trees], &roots)?);
        let mut at = sound(roots.expand([examples, trees]).reshape([examples * trees]))?;
        let has_missing = self.nodes.iter().any(|node| node.is_missing_true);
        for _ in 0..self.depth()? {
            let rows = table.embedding(&at);
            let column = |k: usize| rows.slice(1, k..k + 1).reshape([examples, trees]);
            let (value, split, mode) = (x.gather(1, &column(0).to_index()), column(1), column(4));
            let holds = |&number: &usize| {
                let holds = MODES[number].1(&value, &split);
                if modes.len() == 1 { holds } else { holds * mode.eq(mode.constant(number as f64)) }
            };
            let Some(mut holds) = modes.iter().map(holds).reduce(|a, b| a + b) else { break };
            if has_missing {
                holds = holds.maximum(value.ne(&value) * column(5));
            }
            at = sound(holds.where_cond(&column(2), &column(3)).reshape([examples * trees]).to_index())?;
        }
        Ok(at)
    }

    /// The sum of the weights of each target over the trees, `[N, count]`.
    fn sums(&self, call: &Call<'_>, count: usize) -> Result<Var> {
        let x = rows(call)?;
        let (examples, trees) = (x.shape()[0], self.roots.len());
        let dense = self.dense(call, count, |weight| weight)?;
        let leaves = self.leaves(call, &x)?;
        sound(dense.embedding(&leaves).reshape([examples, trees, count]).sum_over(&[1]))
    }

    /// A number for each node and target: the sum of these numbers of its weights.
    fn dense(&self, call: &Call<'_>, count: usize, number: impl Fn(f64) -> f64) -> Result<Var> {
        let size = self.nodes.len().saturating_mul(count);
        call.budget.charge(size)?;
        let mut table = Vec::new();
        reserve(&mut table, size)?;
        table.resize(size, 0.0);
        for &(node, target, weight) in &self.weights {
            if target >= count {
                bail!(Checkpoint, "a weight of target {target}; there are {count}");
            }
            table[node * count + target] += number(weight);
        }
        constant(call, &[self.nodes.len(), count], &table)
    }
}

/// What becomes of the weights of several trees.
fn aggregated(name: &str, y: Var, trees: usize) -> Result<Var> {
    match name {
        "SUM" => Ok(y),
        "AVERAGE" => Ok(y.scale(1.0 / trees as f64)),
        other => bail!(
            Checkpoint,
            "the attribute `aggregate_function` is {:?}; sums and averages are read",
            shortened(other)
        ),
    }
}

fn count_of_targets(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.int("n_targets", 1)?) {
        Ok(count) if count > 0 => Ok(count),
        _ => bail!(Checkpoint, "the attribute `n_targets` is not above 0"),
    }
}

pub(super) fn regressor(call: &Call<'_>) -> Result<Vec<Value>> {
    let (forest, count) = (Forest::numbered(call, "target")?, count_of_targets(call)?);
    let name = call.text("aggregate_function", "SUM")?;
    let y = aggregated(name, forest.sums(call, count)?, forest.roots.len())?;
    let y = based(call, y, count)?;
    Ok(vec![Value::Var(Transform::of(call)?.apply(y)?, Element::F32)])
}

/// Scores with the base values of each target.
fn based(call: &Call<'_>, y: Var, count: usize) -> Result<Var> {
    match numbers(call, "base_values")? {
        none if none.is_empty() => Ok(y),
        some if some.len() == count => Ok(y + constant(call, &[count], &some)?),
        some => bail!(Checkpoint, "{} base values of {count} targets", some.len()),
    }
}

pub(super) fn ensemble(call: &Call<'_>) -> Result<Vec<Value>> {
    let (forest, count) = (Forest::listed(call)?, count_of_targets(call)?);
    let name = match call.int("aggregate_function", 1)? {
        0 => "AVERAGE",
        1 => "SUM",
        _ => "MIN or MAX",
    };
    let y = aggregated(name, forest.sums(call, count)?, forest.roots.len())?;
    let transform = match call.int("post_transform", 0)? {
        0 => Transform::Nothing,
        1 => Transform::Softmax,
        2 => Transform::Logistic,
        other => bail!(Checkpoint, "the attribute `post_transform` is {other}, which is not supported"),
    };
    call.floats(transform.apply(y)?)
}

pub(super) fn classifier(call: &Call<'_>) -> Result<Vec<Value>> {
    let (forest, classes) = (Forest::numbered(call, "class")?, Classes::of(call, "classlabels_int64s")?);
    let (transform, count) = (Transform::of(call)?, classes.count);
    if count == 2 {
        // One score, of the second class.
        if forest.weights.iter().any(|&(_, class, _)| class != 0) {
            bail!(Checkpoint, "two classes with a weight for each are not supported; those with one weight are");
        }
        let y = based(call, forest.sums(call, 1)?, 1)?;
        // `onnxruntime` takes weights that are all positive for probabilities.
        let is_probability = forest.weights.iter().all(|&(.., weight)| weight > 0.0);
        let label = y.gt(y.constant(if is_probability { 0.5 } else { 0.0 })).reshape([y.shape()[0]]);
        let scores = match transform {
            Transform::Logistic => Var::concat(&[&(-&y).sigmoid(), &y.sigmoid()], 1),
            _ if is_probability => Var::concat(&[&(y.constant(1.0) - &y), &y], 1),
            _ => Var::concat(&[&-&y, &y], 1),
        };
        return classes.results(call, &label, scores);
    }
    let y = based(call, forest.sums(call, count)?, count)?;
    // A class without a score in any leaf that was reached is not the label.
    let has_score = {
        let x = rows(call)?;
        let leaves = forest.leaves(call, &x)?;
        let counts = forest.dense(call, count, |_| 1.0)?.embedding(&leaves);
        counts.reshape([x.shape()[0], forest.roots.len(), count]).sum_over(&[1])
    };
    let label = has_score.where_cond(&y, &y.constant(f64::NEG_INFINITY)).argmax(1).to_float();
    classes.results(call, &label, transform.apply(y)?)
}
