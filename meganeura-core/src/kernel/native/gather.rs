//! Elements of operands of any strides, in order, in blocks that stay in the first-level cache.

use super::{Element, grain, parallel};
use crate::Layout;

/// Elements of a block.
const BLOCK: usize = 256;

/// `y = f(x)` for the elements of a view, in order, in threads.
pub(crate) fn map<A: Element, B: Send>(x: &[A], layout: &Layout, y: &mut [B], f: impl Fn(A) -> B + Sync) {
    let layout = layout.collapse();
    parallel(y, grain(1), &|first, y| {
        let mut block = [A::default(); BLOCK];
        for (y, first) in y.chunks_mut(BLOCK).zip((first..).step_by(BLOCK)) {
            let block = &mut block[..y.len()];
            gather(x, &layout, first, block);
            y.iter_mut().zip(block).for_each(|(y, x)| *y = f(*x));
        }
    });
}

/// `y = f(a, b, c)` for the elements of up to three views; zeros stand for missing ones.
pub(crate) fn map_three<A: Element, B: Send>(x: &[(&[A], &Layout)], y: &mut [B], f: impl Fn(A, A, A) -> B + Sync) {
    let layouts: Vec<_> = x.iter().map(|(_, layout)| layout.collapse()).collect();
    parallel(y, grain(4), &|first, y| {
        let mut blocks = [[A::default(); BLOCK]; 3];
        for (y, first) in y.chunks_mut(BLOCK).zip((first..).step_by(BLOCK)) {
            for ((block, (x, _)), layout) in blocks.iter_mut().zip(x).zip(&layouts) {
                gather(x, layout, first, &mut block[..y.len()]);
            }
            let [a, b, c] = &blocks;
            y.iter_mut().zip(a).zip(b).zip(c).for_each(|(((y, &a), &b), &c)| *y = f(a, b, c));
        }
    });
}

/// The minimum number of elements of an innermost axis to gather at a time. A shorter axis is gathered together with
/// the next.
const STRETCH: usize = 16;

/// The elements of a layout from number `first` on; it has the fewest axes if it is collapsed.
pub(crate) fn gather<T: Copy>(data: &[T], layout: &Layout, first: usize, out: &mut [T]) {
    if let (&[.., outer, inner], &[.., step, stride]) = (layout.shape().dims(), layout.strides())
        && inner < STRETCH
    {
        return gather_pairs(data, layout, [outer, inner], [step, stride], first, out);
    }
    let inner = layout.shape().dims().last().copied().unwrap_or(usize::MAX);
    let stride = layout.strides().last().copied().unwrap_or(0);
    let mut done = 0;
    while done < out.len() {
        let index = first + done;
        let run = (inner - index % inner).min(out.len() - done);
        let from = layout.at(index);
        let to = &mut out[done..done + run];
        match stride {
            0 => to.fill(data[from]),
            1 => to.copy_from_slice(&data[from..from + run]),
            _ => to.iter_mut().zip(data[from..].iter().step_by(stride)).for_each(|(to, &x)| *to = x),
        }
        done += run;
    }
}

/// The same for the two innermost axes, with these extents and strides.
fn gather_pairs<T: Copy>(
    data: &[T],
    layout: &Layout,
    [outer, inner]: [usize; 2],
    [step, stride]: [usize; 2],
    first: usize,
    out: &mut [T],
) {
    let mut done = 0;
    while done < out.len() {
        let index = first + done;
        let inside = index % (outer * inner);
        let run = (outer * inner - inside).min(out.len() - done);
        let mut column = inside % inner;
        let mut from = layout.at(index - inside) + inside / inner * step;
        for to in &mut out[done..done + run] {
            *to = data[from + column * stride];
            column += 1;
            if column == inner {
                (column, from) = (0, from + step);
            }
        }
        done += run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    /// Broadcast, permuted, sliced and contiguous views of more than a block.
    #[test]
    fn functions_meet_the_elements_of_their_views() {
        let x: Vec<i32> = (0..6000).collect();
        let shape = Shape::from([3, 20, 50]);
        let views = [
            Layout::contiguous(shape),
            Layout::contiguous(Shape::from([20, 50, 3])).permute(&[2, 0, 1]),
            Layout::contiguous(Shape::from([20, 1])).expand(shape),
            Layout::contiguous(Shape::from([3, 40, 50])).slice(1, 7, 20),
        ];
        for (a, b) in views.iter().zip(views.iter().cycle().skip(1)) {
            let mut y = vec![i64::MAX; shape.elements()];
            map(&x, a, &mut y, |x| i64::from(x) - 1);
            assert!(y.iter().enumerate().all(|(at, &y)| y == i64::from(x[a.at(at)]) - 1), "{a:?}");
            let mut y = vec![i32::MAX; shape.elements()];
            map_three(&[(&x, a), (&x, b)], &mut y, |a, b, none| a - b + none);
            assert!(y.iter().enumerate().all(|(at, &y)| y == x[a.at(at)] - x[b.at(at)]), "{a:?}, {b:?}");
        }
    }
}
