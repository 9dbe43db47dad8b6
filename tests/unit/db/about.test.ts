import { expect, test } from "bun:test";
import { aboutCommand, aboutText, leadingTexts } from "../../../src/db/branches/about.ts";
import { LINE_CHARACTERS_MAX } from "../../../src/db/requests.ts";

test("a command is shown as a person would type it", () => {
  expect(aboutCommand(["make", "-j2", "CFLAGS=-O2"])).toBe("make -j2 CFLAGS=-O2");
  expect(aboutCommand(["echo", "two words", "it's", ""])).toBe("echo 'two words' 'it'\\''s' ''");
  expect(aboutCommand([])).toBe("");
});

test("an expression of a shell is shown without the shell, and with its arguments", () => {
  expect(aboutCommand(["/bin/sh", "-c", "make; exit 3"])).toBe("make; exit 3");
  expect(aboutCommand(["bash", "-c", "echo $1", "bash", "a b"])).toBe("echo $1 'a b'");
  expect(aboutCommand(["python3", "-c", "print(1)"])).toBe("python3 -c 'print(1)'");
});

test("it is one line, and a long one is cut between characters", () => {
  expect(aboutText(" a\n\tb\r\n c ")).toBe("a b c");
  expect(aboutText("x".repeat(LINE_CHARACTERS_MAX))).toHaveLength(LINE_CHARACTERS_MAX);
  const cut = aboutText("😀".repeat(LINE_CHARACTERS_MAX));
  expect(cut.length).toBeLessThanOrEqual(LINE_CHARACTERS_MAX);
  expect(cut.endsWith("…")).toBe(true);
  expect(cut.isWellFormed()).toBe(true);
  expect(aboutCommand(["sh", "-c", " ".repeat(10_000)])).toHaveLength(1);
});

test("texts are read from any beginning of their JSON", () => {
  const texts = ["/bin/sh", 'q"\\', "\u001b[1m", "é😀", "end"];
  const json = JSON.stringify(texts).replace("é", "\\u00e9");
  expect(leadingTexts(json)).toEqual(texts);
  // As SQLite cuts it, between characters.
  const characters = [...json];
  for (let count = 0; count < characters.length; count++) {
    const read = leadingTexts(characters.slice(0, count).join(""));
    const whole = read.slice(0, -1);
    expect(whole).toEqual(texts.slice(0, whole.length));
    expect(texts[whole.length] ?? "").toStartWith(read.at(-1) ?? "");
  }
  expect(leadingTexts('["a",1,"b"]')).toEqual(["a"]);
  expect(leadingTexts("null")).toEqual([]);
});
