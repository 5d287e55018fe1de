#!/usr/bin/env python3
"""Draws the text on standard input as a terminal window in SVG, for the README.

usage: some-command 2>&1 | terminal_svg.py TITLE > docs/demo.svg
"""
import html
import sys

WIDTH, LINE, CHAR, PAD, TOP = 132, 17, 7.85, 16, 40
lines = [line.rstrip("\n").expandtabs() for line in sys.stdin]
wrapped = []
for line in lines:
    while len(line) > WIDTH:
        cut = line.rfind(" ", 40, WIDTH)  # at a word, when there is one
        cut = cut if cut > 0 else WIDTH
        wrapped.append(line[:cut])
        line = " " * 10 + line[cut:].lstrip()
    wrapped.append(line)
width = int(WIDTH * CHAR + 2 * PAD)
height = TOP + LINE * len(wrapped) + PAD
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
print(f'<rect width="{width}" height="{height}" rx="8" fill="#16181d"/>')
for i, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
    print(f'<circle cx="{18 + 18 * i}" cy="18" r="5.5" fill="{color}"/>')
print(f'<text x="{width / 2}" y="22" fill="#8b93a1" font-family="monospace" font-size="12" text-anchor="middle">'
      f"{html.escape(sys.argv[1] if len(sys.argv) > 1 else '')}</text>")
print('<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">')
for i, line in enumerate(wrapped):
    color = "#d7dae0"
    if line.startswith("$"):
        color = "#7fd88f"
    elif line.startswith("step "):
        color = "#9aa4b2"
    elif line.startswith("verdict"):
        color = "#ffd479"
    text = html.escape(line).replace(" ", "\u00a0")  # browsers draw several plain spaces as one
    print(f'<text x="{PAD}" y="{TOP + LINE * i + 12}" fill="{color}">{text}</text>')
print("</g></svg>")
