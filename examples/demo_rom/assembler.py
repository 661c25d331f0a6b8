"""A two-pass assembler for the 6502 instructions that the game uses."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

__all__ = ["assemble"]

# Addressing modes: imm #n, zp and abs one and two bytes of address, +x and +y indexed, izy (n),Y,
# acc the register A, rel a branch's distance, imp no operand.
_TABLE: Final = """
LDA imm A9 zp A5 zpx B5 abs AD abx BD aby B9 izy B1    STA zp 85 zpx 95 abs 8D abx 9D aby 99 izy 91
LDX imm A2 zp A6 abs AE    LDY imm A0 zp A4 abs AC    STX zp 86 abs 8E    STY zp 84 abs 8C
ADC imm 69 zp 65 abs 6D abx 7D aby 79    SBC imm E9 zp E5 abs ED    CMP imm C9 zp C5 abs CD
CPX imm E0 zp E4 abs EC    CPY imm C0 zp C4 abs CC    AND imm 29 zp 25 abs 2D    BIT zp 24 abs 2C
ORA imm 09 zp 05 abs 0D    EOR imm 49 zp 45 abs 4D    INC zp E6 abs EE    DEC zp C6 abs CE
ASL acc 0A zp 06    LSR acc 4A zp 46    ROL acc 2A zp 26    JMP abs 4C    JSR abs 20
BPL rel 10    BNE rel D0    BEQ rel F0    BCC rel 90    BCS rel B0
SEI imp 78    CLD imp D8    TXS imp 9A    TXA imp 8A    TAX imp AA    TYA imp 98    TAY imp A8
INX imp E8    INY imp C8    DEX imp CA    PHA imp 48    PLA imp 68    RTI imp 40    RTS imp 60
CLC imp 18    SEC imp 38
"""
_FAR: Final = 0xFFFF  # placeholder for a later label: never in the zero page


def _opcodes() -> dict[str, dict[str, int]]:
    """Parse the table into {mnemonic: {mode: opcode}}."""
    found: dict[str, dict[str, int]] = {}
    for entry in re.split(r"\n| {4}", _TABLE.strip()):
        mnemonic, *pairs = entry.split()
        codes = (int(code, 16) for code in pairs[1::2])
        found[mnemonic] = dict(zip(pairs[::2], codes, strict=True))
    return found


_OPCODES: Final = _opcodes()


class _Statement(NamedTuple):
    label: str
    name: str
    operand: str


def assemble(source: str, origin: int, symbols: Mapping[str, int]) -> tuple[bytes, dict[str, int]]:
    """Translate a program.

    Args:
        source: One statement a line: `label: LDA #$3F ; comment`.
        origin: Address of the first byte.
        symbols: Addresses by name.

    Returns:
        The machine code, and the addresses of all names, labels included.

    Raises:
        ValueError: A name is not defined, an instruction or a mode is not in the table, or a branch
            is too far.
    """
    statements = list(_statements(source))
    names = dict(symbols)
    _translate(statements, origin, names, final=False)  # finds the addresses of the labels
    return _translate(statements, origin, names, final=True), names


def _statements(source: str) -> Iterator[_Statement]:
    for line in source.splitlines():
        text = line.partition(";")[0].strip()
        found = re.fullmatch(r"(?:(\w+):)?\s*(\S*)\s*(.*)", text)
        assert found is not None  # every part may be empty
        yield _Statement(found[1] or "", found[2], found[3])


def _translate(
    statements: list[_Statement], origin: int, names: dict[str, int], *, final: bool
) -> bytes:
    code = bytearray()
    for statement in statements:
        here = origin + len(code)
        if statement.label:
            names[statement.label] = here
        if statement.name == ".byte":
            code += bytes(_value(term, names, final) for term in statement.operand.split(","))
        elif statement.name:
            code += _instruction(statement, here, names, final)
    return bytes(code)


def _instruction(statement: _Statement, here: int, names: Mapping[str, int], final: bool) -> bytes:
    modes = _OPCODES.get(statement.name, {})
    mode, text = _mode(statement.operand, modes, names, final)
    if mode not in modes:
        raise ValueError(f"cannot assemble {statement.name} {statement.operand}")
    opcode = modes[mode].to_bytes()
    if not text:
        return opcode
    value = _value(text, names, final)
    if mode == "rel":
        distance = value - (here + 2) if final else 0
        if not -128 <= distance < 128:
            raise ValueError(f"branch too far: {statement.name} {statement.operand}")
        return opcode + (distance & 0xFF).to_bytes()
    return opcode + (value.to_bytes(2, "little") if mode[:2] == "ab" else (value & 0xFF).to_bytes())


def _mode(
    operand: str, modes: Mapping[str, int], names: Mapping[str, int], final: bool
) -> tuple[str, str]:
    """Return the addressing mode and the text of its number."""
    if operand in ("", "A"):
        return "acc" if operand else "imp", ""
    if operand[0] == "#":
        return "imm", operand[1:]
    if operand[0] == "(":
        return "izy", operand[1:].partition(")")[0]
    if "rel" in modes:
        return "rel", operand
    text, _, index = operand.partition(",")
    short = "zp" + index.lower()
    if short in modes and _value(text, names, final) < 256:
        return short, text
    return "ab" + (index.lower() or "s"), text


def _value(text: str, names: Mapping[str, int], final: bool) -> int:
    """Evaluate a sum like `ptr+1`; a prefix `<` or `>` takes its low or high byte."""
    text = text.strip()
    total = sum(_term(term, names, final) for term in text.lstrip("<>").split("+"))
    match text[0]:
        case "<":
            return total & 0xFF
        case ">":
            return total >> 8 & 0xFF
        case _:
            return total


def _term(term: str, names: Mapping[str, int], final: bool) -> int:
    if term.startswith("$"):
        return int(term[1:], 16)
    if term.isdigit():
        return int(term)
    if final and term not in names:
        raise ValueError(f"undefined name {term}")
    return names.get(term, _FAR)
