//! The picture of the floors, docs/images/house.svg: drawn from the table of CONTRIBUTING.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::floors::{Row, floors, rows};
use super::structure::root;

/// The sizes of a box, and of the space around it, in pixels.
const HEIGHT: usize = 34;
const FLOOR: usize = 68;
const GAP: usize = 30;
const LETTER: usize = 8;
const MARGIN: usize = 24;

/// One row of the table, at its place.
struct Placed<'r> {
    row: &'r Row,
    left: usize,
    width: usize,
    floor: usize,
}

impl Placed<'_> {
    fn middle(&self) -> usize {
        self.left + self.width / 2
    }
}

fn label(row: &Row) -> String {
    row.folders.join(", ")
}

/// The rows to which an arrow from this one leads: all that it names, without those that another of these may use.
fn targets<'p, 'r>(from: &Row, placed: &'p [Placed<'r>]) -> Vec<&'p Placed<'r>> {
    let floors = floors();
    let is_implied = |name: &String| from.uses.iter().any(|other| floors[other].contains(name));
    let is_direct = |name: &&String| from.uses.contains(name) && !is_implied(name);
    placed.iter().filter(|below| below.row.folders.iter().any(|name| is_direct(&name))).collect()
}

/// The floor of each row: 0 if it uses no other, or else one above the highest that it uses.
fn floors_of(rows: &[Row]) -> Vec<usize> {
    let mut of = BTreeMap::<&str, usize>::new();
    let mut floors = Vec::new();
    for row in rows {
        let floor = row.uses.iter().map(|name| of[name.as_str()] + 1).max().unwrap_or(0);
        of.extend(row.folders.iter().map(|name| (name.as_str(), floor)));
        floors.push(floor);
    }
    floors
}

/// Places each floor in the middle, its boxes in the order of what they use, so that few arrows cross.
fn placed(rows: &[Row]) -> (Vec<Placed<'_>>, usize) {
    let floors = floors_of(rows);
    let width = |row: &Row| label(row).chars().count() * LETTER + GAP;
    let width_of = |floor: usize| -> usize {
        rows.iter().zip(&floors).filter(|(_, of)| **of == floor).map(|(row, _)| width(row) + GAP).sum()
    };
    let top = floors.iter().copied().max().unwrap_or(0);
    let widest = (0..=top).map(width_of).max().unwrap_or(0) + 2 * MARGIN;
    let mut placed: Vec<Placed<'_>> = Vec::new();
    for floor in 0..=top {
        let mut boxes: Vec<&Row> =
            rows.iter().zip(&floors).filter(|(_, of)| **of == floor).map(|(row, _)| row).collect();
        boxes.sort_by_key(|row| {
            let middles: Vec<usize> = targets(row, &placed).into_iter().map(Placed::middle).collect();
            middles.iter().sum::<usize>() / middles.len().max(1)
        });
        let mut left = (widest - width_of(floor)) / 2 + GAP / 2;
        for row in boxes {
            placed.push(Placed { row, left, width: width(row), floor });
            left += width(row) + GAP;
        }
    }
    (placed, widest)
}

/// The arrows go down, from each box to all that its row names.
fn svg(rows: &[Row]) -> String {
    let (placed, width) = placed(rows);
    let top = placed.iter().map(|placed| placed.floor).max().unwrap_or(0);
    let height = top * FLOOR + HEIGHT + 2 * MARGIN;
    let y = |floor: usize| MARGIN + (top - floor) * FLOOR;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" \
         font-size=\"13\" text-anchor=\"middle\">\n<title>The folders of src; arrows lead to the folders that they \
         use</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for from in &placed {
        for to in targets(from.row, &placed) {
            let (start, end) = (y(from.floor) + HEIGHT, y(to.floor));
            let bend = (start + end) / 2;
            let _ = writeln!(
                text,
                "<path d=\"M{} {start} C{} {bend} {} {bend} {} {end}\" fill=\"none\" stroke=\"#8a94a6\"/>",
                from.middle(),
                from.middle(),
                to.middle(),
                to.middle()
            );
        }
    }
    for placed in &placed {
        let (top, middle) = (y(placed.floor), placed.middle());
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{HEIGHT}\" rx=\"5\" fill=\"#eef3fb\" stroke=\"#33507a\"/>\
             <text x=\"{middle}\" y=\"{}\" fill=\"#1b2738\">{}</text>",
            placed.left,
            placed.width,
            top + HEIGHT / 2 + 4,
            label(placed.row)
        );
    }
    text.push_str("</svg>\n");
    text
}

#[test]
fn the_picture_is_drawn_from_the_floors() {
    let (path, drawn) = (root().join("docs/images/house.svg"), svg(&rows()));
    if std::env::var_os("PACED_WRITE_GENERATED").is_some() {
        std::fs::write(path, drawn).unwrap();
    } else {
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == drawn,
            "docs/images/house.svg is not drawn from CONTRIBUTING.md; run `make generated`"
        );
    }
}
