"""Prints a trace of 2,000 requests at once with LMSYS's mean lengths, exact predictions and a given
coefficient of variation of the output length, for `trail-rt simulate --trace`."""

import json
import math
import random
import sys


def length(rng, mean, variation, minimum, maximum):
    """A log-normal length in tokens, cut to its bounds."""
    sigma = math.sqrt(math.log(1 + variation**2))
    tokens = math.exp(rng.gauss(math.log(mean) - sigma**2 / 2, sigma))
    return int(min(maximum, max(minimum, round(tokens))))


def main():
    rng = random.Random(1)
    for number in range(2000):
        output = length(rng, 215, float(sys.argv[1]), 4, 4096)
        prompt = length(rng, 85, 1.3, 4, 1024)
        request = {"id": number, "arrival_s": 0, "prompt_tokens": prompt}
        print(json.dumps({**request, "output_tokens": output, "r": output}))


main()
