// Fills of the predicted part of a bar: each state has its own, so that colour is not needed.

const PATTERN_SIZE = 6;

/** Lines of a pattern in a square of `PATTERN_SIZE`, as `[x1, y1, x2, y2]`. */
const PATTERN_LINES = {
  prefill: [[1.5, 0, 1.5, 6], [4.5, 0, 4.5, 6]],
  paused: [[0, 1.5, 6, 1.5], [0, 4.5, 6, 4.5]],
  swapped: [[-1, 1, 1, -1], [0, 6, 6, 0], [5, 7, 7, 5]],
};

function patternOf(context, state, color) {
  const size = PATTERN_SIZE;
  const tile = make('canvas', { width: size, height: size });
  const pen = tile.getContext('2d');
  pen.strokeStyle = color;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const [x1, y1, x2, y2] of PATTERN_LINES[state]) {
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}

/** Patterns in the theme's colours, made when they are first used. */
class Patterns {
  constructor() {
    this.made = new Map();
  }

  forget() {
    this.made.clear();
  }

  of(context, state) {
    if (!this.made.has(state)) {
      this.made.set(state, patternOf(context, state, theme.colors[state]));
    }
    return this.made.get(state);
  }
}
