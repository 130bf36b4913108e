"""Streetdigits: house numbers drawn from a seed, the data that needs no download.

Every image is a 32x32 colour crop around one digit of a house number. Its label is the central
digit; the digits next to it are cut off by the frame and tell nothing about the label. A digit is a
set of pen strokes in a unit box. Typeface, pose, pen, peeled paint, light and noise are random.

Shapes: N images of a block, C colours, P pixels in row order, G glyphs, D = 3 digits side by side,
V vertices of a glyph's pen path or the steps between them, S line segments of one image,
1 an axis to broadcast along. x points right and y down.
"""

import numpy as np

from fl2fast import rng

SIDE = 32
NUM_CLASSES = 10
TRAIN_SIZE, TEST_SIZE = 20_000, 4_000  # unless others are asked for
MOST_IMAGES = 1_000_000  # 3 GB
SPLITS = ("train", "test")
BLOCK = 250  # Images that share a generator; a request is the start of a row of whole blocks.

# Difficulty. A pair is a uniform range, a single number a chance or a bound either way. The first
# block sets what no amount of labels can repair, the second how much a few labels leave unseen.
PEEL_RATE = 0.03  # Chance that a disc of paint is missing: part of a 6 or an 8 may be either.
PEEL_RADIUS = (5.0, 8.5)  # Pixels; smaller discs leave digits plain, larger ones leave nothing.
PEEL_OFFSET = 6.0  # Pixels from the centre, so that the disc hits the digit and not the wall.
NOISE = (0.01, 0.05)  # Deviation of the sensor's noise, of full scale; more hides hairlines.
BLUR = (0.8, 3.2)  # Pixels over which a stroke's edge fades; beyond 3 small loops close.

CONTRAST = (0.45, 0.95)  # Paint against wall, of full scale; faint paint fails few labels first.
DARK_PAINT_RATE = 0.08  # Else paint is light; an even mix doubles what a few labels must cover.
NEIGHBOUR_RATE = 0.2  # Chance of a digit on either side: ink that is no evidence for the label.
PITCH = (1.35, 1.9)  # Distance of a neighbour in half heights; at the low end bold strokes touch.
HALF_HEIGHT = (9.5, 12.5)  # Pixels: a digit fills 19 to 25 of the 32 rows.
ASPECT = (0.7, 1.15)  # Width over the glyph's own: narrow and wide typefaces.
ROTATION = 0.1  # Radians: plates hang and cameras tilt.
SHEAR = 0.12  # Italics and cameras to the side.
OFFSET = 1.2  # Pixels: the frame was placed by hand.
TYPEFACE_WARP = 0.08  # Quadratic bend of the unit box, one for all digits of an image.
VERTEX_JITTER = 0.045  # Deviation of every vertex: the painter's hand.
PEN = (0.09, 0.24)  # Half the stroke's width in half heights, from hairline to bold.
TINT = 0.12  # Distance of a colour from its grey: walls are mostly dull.
WALL_GRADIENT = 0.1  # Change of the wall's grey from the centre to an edge.
SHADE = 0.15  # Relative change of the light from the centre to an edge.
TONE = (0.7, 1.4)  # Bend of the tone curve: over- and underexposed cameras.

Point = tuple[float, float]


def arc(
    x: float, y: float, width: float, height: float, start: float, stop: float, num: int
) -> list[Point]:
    """`num` chords of an ellipse, from angle start to stop in turns: 0 right, 0.25 down."""
    turns = np.linspace(start, stop, num + 1) * 2 * np.pi
    return [(x + width * np.cos(t), y + height * np.sin(t)) for t in turns]


# (digit, strokes), sorted by digit. A stroke is a polyline in about |x| < 0.6 and |y| < 1. A 2 is
# round and a 5 square at the top, so that a mirrored 2 is no 5: training may mirror images.
GLYPHS: list[tuple[int, list[list[Point]]]] = [
    (0, [arc(0, 0, 0.58, 1, 0, 1, 14)]),
    (0, [[*arc(0, -0.4, 0.5, 0.6, 0.5, 1, 6), *arc(0, 0.4, 0.5, 0.6, 0, 0.5, 6), (-0.5, -0.4)]]),
    (1, [[(0, -1), (0, 1)]]),
    (1, [[(-0.38, -0.6), (0.05, -1), (0.05, 1)]]),
    (1, [[(-0.35, -0.65), (0, -1), (0, 1)], [(-0.4, 1), (0.4, 1)]]),
    (2, [[*arc(0, -0.45, 0.55, 0.55, 0.47, 1.1, 8), (-0.57, 1), (0.6, 1)]]),
    (2, [[*arc(0, -0.48, 0.52, 0.52, 0.55, 1.08, 7), (-0.35, 0.65), (-0.55, 1), (0.58, 1)]]),
    (3, [arc(-0.05, -0.5, 0.5, 0.5, 0.57, 1.22, 7) + arc(-0.05, 0.47, 0.6, 0.53, 0.78, 1.43, 8)]),
    (3, [[(-0.5, -1), (0.5, -1), (-0.05, -0.2), *arc(-0.05, 0.4, 0.6, 0.6, 0.77, 1.42, 8)]]),
    (4, [[(0.3, 1), (0.3, -1), (-0.6, 0.4), (0.65, 0.4)]]),
    (4, [[(-0.4, -1), (-0.5, 0.15), (0.6, 0.15)], [(0.35, -0.7), (0.35, 1)]]),
    (5, [[(0.5, -1), (-0.42, -1), (-0.48, -0.1), *arc(-0.03, 0.37, 0.58, 0.63, 0.63, 1.42, 9)]]),
    (5, [[(0.5, -1), (-0.4, -1), (-0.4, -0.2), *arc(0, 0.38, 0.55, 0.62, 0.76, 1.42, 8)]]),
    (6, [[(0.35, -1), (-0.2, -0.45), *arc(0, 0.42, 0.56, 0.58, 0.53, 1.56, 11)]]),
    (6, [arc(0.05, -0.2, 0.6, 0.8, 0.9, 0.5, 6) + arc(0, 0.42, 0.55, 0.58, 0.5, 1.5, 10)]),
    (7, [[(-0.55, -1), (0.55, -1), (-0.15, 1)]]),
    (7, [[(-0.55, -1), (0.55, -1), (0.1, -0.1), (-0.1, 1)]]),
    (7, [[(-0.55, -1), (0.55, -1), (-0.15, 1)], [(-0.25, 0), (0.45, 0)]]),
    (8, [arc(0, -0.5, 0.46, 0.5, 0.25, 1.25, 8) + arc(0, 0.5, 0.57, 0.5, 0.75, 1.75, 8)[1:]]),
    (9, [[(-0.35, 1), (0.2, 0.45), *arc(0, -0.42, 0.56, 0.58, 0.03, 1.06, 11)]]),
    (9, [arc(-0.05, 0.2, 0.6, 0.8, 0.4, 0, 6) + arc(0, -0.42, 0.55, 0.58, 0, 1, 10)]),
]
DIGIT_G = np.array([digit for digit, _ in GLYPHS])


def pen_paths() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and y of every glyph's vertices, and whether the pen is down on the way to the next."""
    longest = max(sum(map(len, strokes)) for _, strokes in GLYPHS)
    x_GV, y_GV = np.zeros((2, len(GLYPHS), longest))
    pen_down_GV = np.zeros((len(GLYPHS), longest - 1), dtype=bool)
    for g, (_, strokes) in enumerate(GLYPHS):
        begin = 0
        for stroke in strokes:
            end = begin + len(stroke)
            x_GV[g, begin:end], y_GV[g, begin:end] = np.transpose(stroke)
            pen_down_GV[g, begin : end - 1] = True
            begin = end
    return x_GV, y_GV, pen_down_GV


X_GV, Y_GV, PEN_DOWN_GV = pen_paths()


def choose_glyphs(random: np.random.Generator, label_N: np.ndarray) -> np.ndarray:
    """A variant of the label's digit in the middle, of any digits left and right of it."""
    digit_ND = random.integers(NUM_CLASSES, size=(len(label_N), 3))
    digit_ND[:, 1] = label_N
    _, first, variants = np.unique(DIGIT_G, return_index=True, return_counts=True)
    return first[digit_ND] + random.integers(variants[digit_ND])


def write(random: np.random.Generator, label_N: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Each image's segments [4, S] as tail x, tail y, head x, head y, and half its pen's width.

    All in pixels, from the centre of the frame.
    """
    glyph_ND = choose_glyphs(random, label_N)
    num = len(label_N)

    def uniform(low: float, high: float, digits: int = 1) -> np.ndarray:
        return random.uniform(low, high, (num, digits, 1))

    def jitter_and_bend(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        square, mixed, other_square = (uniform(-TYPEFACE_WARP, TYPEFACE_WARP) for _ in range(3))
        hand = VERTEX_JITTER * random.standard_normal(x.shape)
        return hand + square * x * x + mixed * x * y + other_square * y * y

    x_NDV, y_NDV = X_GV[glyph_ND], Y_GV[glyph_ND]
    x_NDV, y_NDV = x_NDV + jitter_and_bend(x_NDV, y_NDV), y_NDV + jitter_and_bend(x_NDV, y_NDV)

    side_D1 = np.array([[-1], [0], [1]])
    x_NDV = uniform(*ASPECT) * (x_NDV + side_D1 * uniform(*PITCH, digits=3))
    x_NDV += uniform(-SHEAR, SHEAR) * y_NDV
    height, angle = uniform(*HALF_HEIGHT), uniform(-ROTATION, ROTATION)
    cos, sin = height * np.cos(angle), height * np.sin(angle)
    x_NDV, y_NDV = cos * x_NDV - sin * y_NDV, sin * x_NDV + cos * y_NDV
    x_NDV += uniform(-OFFSET, OFFSET)
    y_NDV += uniform(-OFFSET, OFFSET)

    present_ND1 = (side_D1 == 0) | (uniform(0, 1, digits=3) < NEIGHBOUR_RATE)
    drawn_NDV = PEN_DOWN_GV[glyph_ND] & present_ND1
    ends = (x_NDV[..., :-1], y_NDV[..., :-1], x_NDV[..., 1:], y_NDV[..., 1:])
    segment_N4DV = np.stack(ends, axis=1, dtype=np.float32)
    pairs = zip(segment_N4DV, drawn_NDV, strict=True)
    half_pen_N1 = (height * uniform(*PEN))[:, 0].astype(np.float32)
    return [segment_4DV[:, drawn_DV] for segment_4DV, drawn_DV in pairs], half_pen_N1


AXIS = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
Y_P, X_P = (axis.ravel() for axis in np.meshgrid(AXIS, AXIS, indexing="ij"))


def distance(segment_4S: np.ndarray) -> np.ndarray:
    """Distance of every pixel of one image, whose fields fit the cache, to its nearest segment."""
    tail_x, tail_y, head_x, head_y = segment_4S[:, :, None]
    step_x, step_y = head_x - tail_x, head_y - tail_y
    squared_length = step_x * step_x + step_y * step_y
    from_tail_x_SP, from_tail_y_SP = X_P - tail_x, Y_P - tail_y

    # The nearest point of a segment lies at the fraction `along` of its step.
    along_SP = from_tail_x_SP * (step_x / squared_length)
    along_SP += from_tail_y_SP * (step_y / squared_length)
    np.clip(along_SP, 0, 1, out=along_SP)
    from_tail_x_SP -= along_SP * step_x
    from_tail_y_SP -= along_SP * step_y
    from_tail_x_SP *= from_tail_x_SP
    from_tail_y_SP *= from_tail_y_SP
    return np.sqrt((from_tail_x_SP + from_tail_y_SP).min(axis=0))


def paint(
    random: np.random.Generator, distance_NP: np.ndarray, half_pen_N1: np.ndarray
) -> np.ndarray:
    """Wall, paint, light and sensor around the strokes: images in 0..1, [N, C, P]."""
    num = len(distance_NP)

    def uniform(low: float, high: float, colours: int = 1) -> np.ndarray:
        return random.uniform(low, high, (num, colours, 1)).astype(np.float32)

    def gradient(bound: float) -> np.ndarray:
        x_slope, y_slope = uniform(-bound, bound), uniform(-bound, bound)
        return (x_slope * X_P + y_slope * Y_P) / AXIS[-1]

    def tint() -> np.ndarray:
        colour_NC1 = uniform(-TINT, TINT, colours=3)
        return colour_NC1 - colour_NC1.mean(axis=1, keepdims=True)

    fade_N1P = ((half_pen_N1 - distance_NP)[:, None] / uniform(*BLUR) + 0.5).clip(0, 1)
    ink_N1P = fade_N1P * fade_N1P * (3 - 2 * fade_N1P)

    # The paint has peeled off in a disc with an edge of a pixel; a radius of -1 peels nothing.
    disc_x, disc_y = uniform(-PEEL_OFFSET, PEEL_OFFSET), uniform(-PEEL_OFFSET, PEEL_OFFSET)
    radius = np.where(uniform(0, 1) < PEEL_RATE, uniform(*PEEL_RADIUS), -1)
    from_disc_N1P = np.sqrt(np.square(X_P - disc_x) + np.square(Y_P - disc_y)) - radius
    ink_N1P *= from_disc_N1P.clip(0, 1)

    # The greys of wall and paint lie `contrast` apart.
    contrast = uniform(*CONTRAST)
    middle = contrast / 2 + uniform(0, 1) * (1 - contrast)
    to_paint = np.where(uniform(0, 1) < DARK_PAINT_RATE, -contrast, contrast)
    wall_NCP = middle - to_paint / 2 + tint() + gradient(WALL_GRADIENT)
    paint_NC1 = middle + to_paint / 2 + tint()
    image_NCP = wall_NCP + ink_N1P * (paint_NC1 - wall_NCP)

    # A tone curve that keeps 0 and 1, as gamma does: below 1 it brightens, above it darkens.
    image_NCP = (image_NCP * (1 + gradient(SHADE))).clip(0, 1)
    image_NCP /= image_NCP + uniform(*TONE) * (1 - image_NCP)
    noise_NCP = random.standard_normal(image_NCP.shape, dtype=np.float32)
    return (image_NCP + uniform(*NOISE) * noise_NCP).clip(0, 1)


def draw_block(seed: int, split: str, block: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [N, C, P] and labels [N] of one block, every class as often as any other."""
    random = rng.generator(seed, "streetdigits", SPLITS.index(split), block)
    label_N = random.permutation(np.arange(BLOCK) % NUM_CLASSES)
    segments, half_pen_N1 = write(random, label_N)
    distance_NP = np.stack([distance(segment_4S) for segment_4S in segments])
    image_NCP = paint(random, distance_NP, half_pen_N1)
    return np.rint(image_NCP * 255).astype(np.uint8), label_N


def draw(num: int, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [num, 3, 32, 32] and int64 labels [num]; `split` is "train" or "test".

    A pure function of its arguments, and the start of every longer draw of the same seed and split.

    >>> image_NCHW, label_N = draw(3, seed=0, split="test")
    >>> image_NCHW.shape, image_NCHW.dtype, label_N.shape
    ((3, 3, 32, 32), dtype('uint8'), (3,))
    """
    blocks = [draw_block(seed, split, block) for block in range(-(-num // BLOCK))]
    images, labels = zip(*blocks, strict=True)
    image_NCP, label_N = np.concatenate(images)[:num], np.concatenate(labels)[:num]
    return image_NCP.reshape(num, 3, SIDE, SIDE), label_N
