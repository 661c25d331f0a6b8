; Stepwell Test: the program. Names of RAM addresses (`lives`) come from memory.py; `map` is the
; address of the two screens. __init__.py describes the game.

; --- power on: wait for the picture unit, clear RAM, load palettes and both screens ---
reset:  SEI
        CLD
        LDX #$40
        STX $4017           ; no APU frame interrupt
        LDX #$FF
        TXS
        INX
        STX $2000
        STX $2001
        STX $4010
        BIT $2002
warm1:  BIT $2002
        BPL warm1
        TXA
clear:  STA $0000,X
        STA $0200,X
        STA $0300,X
        STA $0400,X
        STA $0500,X
        STA $0600,X
        STA $0700,X
        INX
        BNE clear
warm2:  BIT $2002
        BPL warm2
        LDA #$3F            ; palettes
        STA $2006
        LDA #$00
        STA $2006
pal:    LDA palette,X
        STA $2007
        INX
        CPX #$20
        BNE pal
        LDA #$20            ; both name tables
        STA $2006
        LDA #$00
        STA $2006
        LDA #<map
        STA ptr
        LDA #>map
        STA ptr+1
        LDX #$08
        LDY #$00
copy:   LDA (ptr),Y
        STA $2007
        INY
        BNE copy
        INC ptr+1
        DEX
        BNE copy
        LDA #$01
        STA rng
        JSR newgame
        LDA #$88            ; NMI on, sprites from table 1
        STA $2000
idle:   JMP idle

; --- 60 times a second, at the end of each picture: all of the game happens here ---
nmi:    PHA
        TXA
        PHA
        TYA
        PHA
        LDA #$00
        STA $2003
        LDA #$02
        STA $4014           ; sprites
        BIT $2002
        LDA #$3F            ; backdrop colour tells the state
        STA $2006
        LDA #$00
        STA $2006
        LDX state
        LDA backdrop,X
        STA $2007
        LDA #$00
        STA $2006
        STA $2006
        LDA world_x_hi
        AND #$01
        ORA #$88
        STA $2000
        LDA world_x_lo
        STA $2005
        LDA #$00
        STA $2005
        LDA #$1E
        STA $2001
        INC frame_lo
        BNE nmi1
        INC frame_hi
nmi1:   JSR readpad
        LSR rng             ; 8-bit Galois LFSR, period 255
        BCC nmi2
        LDA rng
        EOR #$B8
        STA rng
nmi2:   LDA state
        CMP #$01
        BNE nmi3
        JSR play
        JMP nmi4
nmi3:   LDA pad_new
        AND #$10
        BEQ nmi4
        JSR newgame
        LDA #$01
        STA state
nmi4:   JSR draw
        PLA
        TAY
        PLA
        TAX
        PLA
irq:    RTI

; --- the pad: from bit 7 down A B SELECT START UP DOWN LEFT RIGHT ---
readpad: LDA pad
        STA pad_prev
        LDA #$01
        STA $4016
        LDA #$00
        STA $4016
        LDX #$08
rp1:    LDA $4016
        LSR A
        ROL pad
        DEX
        BNE rp1
        LDA pad_prev
        EOR #$FF
        AND pad
        STA pad_new
        RTS

; --- a new game, and a new life ---
newgame: LDA #$03
        STA lives
        LDA #$00
        STA score
        STA score_tens
        STA score_ones
        STA world_x_lo
        STA world_x_hi
        LDA #100
        STA coin_x
        LDA #160
        STA coin_y
respawn: LDA #40
        STA player_x
        LDA #120
        STA player_y
        STA enemy_y
        LDA #240
        STA enemy_x
        RTS

; --- one frame of play ---
play:   LDA #$02
        STA speed
        LDA pad
        AND #$80
        BEQ p1
        ASL speed
p1:     LDA pad
        AND #$01            ; right
        BEQ p3
        LDA player_x
        CMP #120
        BCS p2
        ADC speed           ; carry is clear
        STA player_x
        JMP p3
p2:     CLC
        LDA world_x_lo
        ADC speed
        STA world_x_lo
        BCC p2b
        INC world_x_hi
        LDA world_x_hi
        CMP #$03
        BNE p2b
        LDA #$03            ; cleared
        STA state
p2b:    SEC
        LDA enemy_x
        SBC speed
        STA enemy_x
        SEC
        LDA coin_x
        SBC speed
        STA coin_x
p3:     LDA pad
        AND #$02            ; left
        BEQ p4
        LDA player_x
        CMP #12
        BCC p4
        SBC speed           ; carry is set
        STA player_x
p4:     LDA pad
        AND #$04            ; down
        BEQ p5
        LDA player_y
        CMP #188
        BCS p5
        ADC speed
        STA player_y
p5:     LDA pad
        AND #$08            ; up
        BEQ p6
        LDA player_y
        CMP #44
        BCC p6
        SBC speed
        STA player_y
p6:     DEC enemy_x
        LDA enemy_x
        LDX enemy_y
        JSR touch
        BNE lose
        LDA pad_new
        AND #$20            ; select
        BNE lose
        LDA coin_x
        LDX coin_y
        JSR touch
        BEQ p7
        INC score
        INC score_ones
        LDA score_ones
        CMP #10
        BNE p6b
        LDA #$00
        STA score_ones
        INC score_tens
p6b:    LDA rng
        AND #$7F
        ADC #60
        STA coin_x
        LDA rng
        LSR A
        AND #$7F
        CLC
        ADC #50
        STA coin_y
p7:     RTS
lose:   DEC lives
        BNE l1
        LDA #$02
        STA state
l1:     JMP respawn

; --- do the player and a thing overlap? ---
touch:  STX hit             ; A, X = thing's x, y; result not zero if it touches
        SEC
        SBC player_x
        JSR near
        BCS no
        LDA hit
        SEC
        SBC player_y
        JSR near
        BCS no
        LDA #$01
        RTS
no:     LDA #$00
        RTS
near:   BPL n1              ; carry clear if |A| < 12
        EOR #$FF
        CLC
        ADC #$01
n1:     CMP #12
        RTS

; --- the sprites of this frame: player, enemy, coin, digits ---
draw:   LDX #$00
        LDA player_x
        LDY player_y
        JSR put
        LDA #$04
        STA tile
        LDA #$01
        STA attr
        LDA enemy_x
        LDY enemy_y
        JSR put16
        LDA #$08
        STA tile
        LDA #$02
        STA attr
        LDY coin_y
        LDA frame_lo        ; odd frame: hide the coin (flicker)
        AND #$01
        BEQ d1
        LDY #$F0
d1:     LDA coin_x
        JSR put16
        LDA score_tens      ; status line
        LDY #24
        JSR digit
        LDA score_ones
        LDY #32
        JSR digit
        LDA lives
        LDY #216
        JSR digit
        LDA #$F8
d2:     STA $0200,X
        INX
        INX
        INX
        INX
        BNE d2
        RTS

put:    STA tx              ; player: tile 0, palette 0
        LDA #$00
        STA tile
        STA attr
        LDA tx
put16:  STA tx
        STY ty
        LDY #$00
pt1:    CLC
        LDA ty
        ADC offy,Y
        STA $0200,X
        LDA tile
        STA $0201,X
        INC tile
        LDA attr
        STA $0202,X
        CLC
        LDA tx
        ADC offx,Y
        STA $0203,X
        INX
        INX
        INX
        INX
        INY
        CPY #$04
        BNE pt1
        RTS
digit:  CLC                 ; A = digit, Y = x
        ADC #$10
        STA $0201,X
        LDA #15
        STA $0200,X
        LDA #$03
        STA $0202,X
        TYA
        STA $0203,X
        INX
        INX
        INX
        INX
        RTS

; --- tables ---
offy:   .byte 0,0,8,8
offx:   .byte 0,8,0,8
backdrop: .byte $02,$21,$06,$1A
palette: .byte $02,$00,$10,$30, $02,$07,$17,$27, $02,$0F,$0F,$0F, $02,$0A,$1A,$2A
        .byte $02,$16,$27,$30, $02,$0F,$05,$30, $02,$08,$28,$38, $02,$30,$30,$30
