// Only a default argument knows the line of a call, and it cannot follow a pack. So what takes any number of arguments
// and is to know where it was called has an overload for each number of them, up to six: TUTTI_RPC_COUNTS(X) is X(1) to
// X(6), where X(n) defines a template of TUTTI_RPC_CLASSES(n) that takes TUTTI_RPC_GIVEN(n) and then a source_location,
// and passes on TUTTI_RPC_NAMES(n).
#pragma once

#define TUTTI_RPC_COUNTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define TUTTI_RPC_CLASSES(n) TUTTI_RPC_CLASSES_##n
#define TUTTI_RPC_CLASSES_1 class A1
#define TUTTI_RPC_CLASSES_2 TUTTI_RPC_CLASSES_1, class A2
#define TUTTI_RPC_CLASSES_3 TUTTI_RPC_CLASSES_2, class A3
#define TUTTI_RPC_CLASSES_4 TUTTI_RPC_CLASSES_3, class A4
#define TUTTI_RPC_CLASSES_5 TUTTI_RPC_CLASSES_4, class A5
#define TUTTI_RPC_CLASSES_6 TUTTI_RPC_CLASSES_5, class A6
#define TUTTI_RPC_GIVEN(n) TUTTI_RPC_GIVEN_##n
#define TUTTI_RPC_GIVEN_1 const A1& a1
#define TUTTI_RPC_GIVEN_2 TUTTI_RPC_GIVEN_1, const A2& a2
#define TUTTI_RPC_GIVEN_3 TUTTI_RPC_GIVEN_2, const A3& a3
#define TUTTI_RPC_GIVEN_4 TUTTI_RPC_GIVEN_3, const A4& a4
#define TUTTI_RPC_GIVEN_5 TUTTI_RPC_GIVEN_4, const A5& a5
#define TUTTI_RPC_GIVEN_6 TUTTI_RPC_GIVEN_5, const A6& a6
#define TUTTI_RPC_NAMES(n) TUTTI_RPC_NAMES_##n
#define TUTTI_RPC_NAMES_1 a1
#define TUTTI_RPC_NAMES_2 TUTTI_RPC_NAMES_1, a2
#define TUTTI_RPC_NAMES_3 TUTTI_RPC_NAMES_2, a3
#define TUTTI_RPC_NAMES_4 TUTTI_RPC_NAMES_3, a4
#define TUTTI_RPC_NAMES_5 TUTTI_RPC_NAMES_4, a5
#define TUTTI_RPC_NAMES_6 TUTTI_RPC_NAMES_5, a6
